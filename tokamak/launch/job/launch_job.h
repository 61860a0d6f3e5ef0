// One attempt of `tokamak launch`: ranks under mpirun, each watched by a Tokamak process, so that
// their exit codes and signals are known and none is left behind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokamak/launch/job/verdict.h"
#include "tokamak/launch/process/signals.h"

namespace tokamak::launch {

struct LaunchJob {
  int64_t num_ranks = 1;
  std::vector<std::string> hosts;  ///< lines of a hostfile; empty: this machine
  std::vector<std::string> words;  ///< a verb, or a program with a slash in its name, and the rest
  bool print_environment = false;  ///< ranks print what they see instead of running `words`
  bool keeps_last_step = false;    ///< ranks keep it in memory that outlives them
  int64_t start_seconds = 60;      ///< all hosts must have started their ranks by then
};

/// Starts the ranks, passes their output on, and signals too (a second one to stop kills the job);
/// waits for all, for a bounded time once one has ended, and reports a machine's fault with the
/// last collective that each rank entered. Throws Error if mpirun is missing or not Open MPI's.
Verdict run_job(const LaunchJob& job, const LaunchSignals& signals);

}  // namespace tokamak::launch
