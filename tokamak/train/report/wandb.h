// Writes the metrics of a run as an offline run of Weights & Biases, which `wandb sync` uploads.
#pragma once

#include <filesystem>
#include <string>

namespace tokamak {

struct WandbRun {
  std::filesystem::path folder;  ///< what `wandb sync` takes
  int64_t steps = 0;             ///< in its history
};

/// Writes OUT/offline-run-DATE-ID/run-ID.wandb from metrics.jsonl and, if there is one,
/// validation.jsonl in `run`; fields of the latter are called "validation/NAME". The ID follows
/// from the run's path, so a later export of the same run has the same. Throws Error where there
/// are no metrics.
WandbRun write_wandb_run(const std::filesystem::path& run, const std::filesystem::path& out,
                         const std::string& project);

}  // namespace tokamak
