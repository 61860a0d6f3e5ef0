// Measures how long a restarted job takes until it trains again.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>

#include "tokamak/cli/launch/launch_job.h"
#include "tokamak/comm/flight_file.h"

namespace tokamak::cli {

/// Follows rank 0 of an attempt by its flight record, where that is on this host, and prints one
/// line when its next step is done. Does nothing for the first attempt.
class RecoveryClock {
 public:
  /// The flight records will be in `folder`.
  RecoveryClock(const std::optional<Recovery>& recovery, std::filesystem::path folder);

  void ranks_began();

  /// Looks once, at regular intervals.
  void look();

 private:
  using Clock = std::chrono::steady_clock;

  double seconds_after_fault(Clock::time_point at) const;

  std::optional<Recovery> recovery_;  ///< nothing once the line is printed
  std::filesystem::path folder_;
  std::optional<FlightFile> file_;
  std::optional<Clock::time_point> began_at_;
  std::optional<Clock::time_point> trains_at_;
  int64_t first_step_ = 0;
};

}  // namespace tokamak::cli
