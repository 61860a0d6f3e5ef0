// How long each step of a run took.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace tokamak {

class StepTimes {
 public:
  /// Takes when a step ended. A step takes the time since the one before it ended, so that the
  /// first after a start or a rollback has none.
  void add(int64_t step, std::chrono::steady_clock::time_point end);

  /// Returns the seconds of the last step, if it is known.
  std::optional<double> last_s() const { return last_s_; }

  /// Returns the median of all steps that are known, the larger one of two.
  std::optional<double> median_s() const;

 private:
  int64_t step_ = -1;
  std::chrono::steady_clock::time_point end_;
  std::optional<double> last_s_;
  std::vector<double> all_s_;
};

}  // namespace tokamak
