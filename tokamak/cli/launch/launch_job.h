// One attempt of `tokamak launch`: ranks under mpirun, each watched by a Tokamak process, so that
// their exit codes and signals are known and none is left behind.
#pragma once

#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

namespace tokamak::cli {

struct LaunchJob {
  int64_t num_ranks = 1;
  std::string hostfile;            ///< empty: this machine
  std::vector<std::string> words;  ///< a verb, or a program with a slash in its name, and the rest
  bool print_environment = false;  ///< ranks print what they see instead of running `words`
};

struct LaunchResult {
  /// Exit code of the worst rank that ended by itself; a death by signal is 128 + signal.
  int exit_code = 0;
  bool was_stopped = false;  ///< SIGTERM or SIGINT came
};

/// Starts the ranks, passes their output on, hands SIGTERM and SIGINT to each of them (a second one
/// kills the job), waits for all and reports a machine's fault with the last collective that each
/// rank entered. Throws Error if mpirun is missing or not Open MPI's.
LaunchResult run_job(const LaunchJob& job);

}  // namespace tokamak::cli
