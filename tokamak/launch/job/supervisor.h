// Starts a job again after faults of machines, as long as that can help.
#pragma once

#include <cstdint>

#include "tokamak/launch/job/launch_job.h"
#include "tokamak/launch/process/hosts.h"

namespace tokamak::launch {

/// The launcher's exit code where starting again cannot help.
inline constexpr int kExitCrashLoop = 76;

/// Counts how often a job has ended with the same code after the same step, and without hosts that
/// are to be left out from then on.
class CrashLoop {
 public:
  /// Takes the end of an attempt. Returns how many in a row have ended so, this one among them.
  int add(const Verdict& verdict);

  /// Returns how many attempts in a row have not got beyond the step of the one before.
  int num_without_progress() const { return num_without_progress_; }

 private:
  int code_ = 0;
  int64_t step_ = -2;
  std::string leave_out_;
  int num_alike_ = 0;
  int num_without_progress_ = 0;
};

/// Runs `job` on the first of `hosts`, and again after each fault of a machine, at most
/// `max_restarts` times: on spare hosts where a host has failed twice or has gone, after a pause
/// where the last attempt has got no further. Three ends with the same code after the same step are
/// no accident: kExitCrashLoop. Returns the exit code of the whole.
int supervise(LaunchJob job, Hosts hosts, int64_t max_restarts, const LaunchSignals& signals);

}  // namespace tokamak::launch
