// `train --dry-run`: whether a run fits the machine that it is asked on.
#pragma once

#include <string>

#include "tokamak/cli/devices.h"
#include "tokamak/cli/run_config.h"
#include "tokamak/comm/launch_environment.h"
#include "tokamak/run/planned_run.h"

namespace tokamak::cli {

struct Fit {
  std::string text;  ///< a line each for memory, disk and time, with what is there
  bool fits = true;
};

/// Returns the time that is written for people: "3.1 s", "2 h 05 min", "12 days".
std::string time_text(double seconds);

/// Proves that the plans of the run are sound and that those of all ranks fit together
/// (run/plan_proof.h); says so in a line. Throws Bug.
std::string proof_text(const PlannedRun& planned, const Target& target);

/// Compares the plan with the free memory of this machine's device, the checkpoints that will lie
/// on disk at once with the free space there, and, where the price of a step is known, the steps
/// with what is left of a Slurm allocation. REQUIRES: the run's device is in this machine.
Fit fit_of(const RunConfig& run, const PlannedRun& planned, const Target& target,
           const LaunchEnvironment& launched);

}  // namespace tokamak::cli
