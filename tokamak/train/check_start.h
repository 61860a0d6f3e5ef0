// What a run would refuse before its first step, found without running it.
#pragma once

#include <string>
#include <vector>

#include "tokamak/run/planned_run.h"
#include "tokamak/train/trainer.h"

namespace tokamak {

/// Throws as train() would for the data, weights, checkpoints and folders of a rank that is planned
/// as `run`. Reads the first document of text and the headers of weights, and writes nothing.
/// Returns lines that train() would log.
std::vector<std::string> check_start(const TrainerOptions& options, const PlannedRun& run);

}  // namespace tokamak
