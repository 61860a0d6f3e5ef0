// Measures the phases between the start of a process and its first step.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace tokamak {

class StartPhases {
 public:
  using Clock = std::chrono::steady_clock;

  StartPhases() : StartPhases(Clock::now()) {}

  explicit StartPhases(Clock::time_point begin) : begin_(begin) {}

  /// Ends a phase, which began where the one before ended; an existing name gets more.
  void end(const std::string& name, Clock::time_point at = Clock::now());

  /// States `seconds` of a phase as one of its own.
  void take_out(const std::string& phase, const std::string& part, double seconds);

  /// Returns "Started in 3.2 s: MPI 0.4, device 1.1, ..."; phases below 0.05 s are left out.
  std::string line() const;

 private:
  struct Phase {
    std::string name;
    double seconds = 0.0;
  };

  Phase& phase_of(const std::string& name);

  Clock::time_point begin_;
  Clock::time_point last_ = begin_;
  std::vector<Phase> phases_;
};

}  // namespace tokamak
