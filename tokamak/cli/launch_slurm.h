// `tokamak launch --slurm`.
#pragma once

#include "tokamak/cli/verbs.h"

namespace tokamak::cli {

/// Whether the launcher's own words, those before --, ask for Slurm.
bool wants_slurm(Args args);

/// Renders the batch script and prints it (--dry-run), or submits it and follows the job.
int run_launch_slurm(Args args);

}  // namespace tokamak::cli
