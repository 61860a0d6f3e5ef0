#include "tokamak/train/report/step_times.h"

#include "tokamak/core/timing.h"

namespace tokamak {

void StepTimes::add(int64_t step, std::chrono::steady_clock::time_point end) {
  last_s_.reset();
  if (step == step_ + 1 && step_ >= 0) {
    last_s_ = std::chrono::duration<double>(end - end_).count();
    all_s_.push_back(*last_s_);
  }
  step_ = step;
  end_ = end;
}

std::optional<double> StepTimes::median_s() const {
  if (all_s_.empty()) return std::nullopt;
  return median(all_s_);
}

}  // namespace tokamak
