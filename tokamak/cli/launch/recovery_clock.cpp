#include "tokamak/cli/launch/recovery_clock.h"

#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tokamak/core/error.h"

namespace tokamak::cli {

RecoveryClock::RecoveryClock(const std::optional<Recovery>& recovery, std::filesystem::path folder)
    : recovery_(recovery), folder_(std::move(folder)) {}

void RecoveryClock::ranks_began() {
  if (!began_at_) began_at_ = Clock::now();
}

double RecoveryClock::seconds_after_fault(Clock::time_point at) const {
  return std::chrono::duration<double>(at - recovery_->fault_at).count();
}

void RecoveryClock::look() {
  if (!recovery_ || !began_at_) return;
  if (!file_) {
    std::error_code code;
    if (std::filesystem::file_size(folder_ / "rank-0", code) != sizeof(FlightPage)) return;
    try {
      file_ = FlightFile::open(folder_, 0);
    } catch (const SystemError&) {
      return;
    }
  }
  const FlightPage& page = file_->page();
  if (page.activity.load() == RankActivity::kStarting) return;
  const int64_t step = page.step.load();
  if (!trains_at_) {
    trains_at_ = Clock::now();
    first_step_ = step;
  }
  if (step <= first_step_) return;
  fmt::print(stderr,
             "tokamak launch: step {} is done {:.1f} s after the fault (all ranks ended {:.1f}, "
             "new ones began {:.1f}, training started {:.1f})\n",
             step, seconds_after_fault(Clock::now()), seconds_after_fault(recovery_->ended_at),
             seconds_after_fault(*began_at_), seconds_after_fault(*trains_at_));
  recovery_.reset();
}

}  // namespace tokamak::cli
