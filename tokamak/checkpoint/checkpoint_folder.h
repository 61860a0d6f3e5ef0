// The folder of a run's checkpoints: FOLDER/step-N.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tokamak/checkpoint/manifest.h"

namespace tokamak {

enum class CheckpointKind {
  kResumable,
  kModelOnly,
  /// An exported Hugging Face folder.
  kHuggingFace,
  /// Incomplete, damaged, or written by another program; `problem` says which.
  kUnusable,
};

struct CheckpointEntry {
  int64_t step = 0;
  std::filesystem::path path;
  CheckpointKind kind = CheckpointKind::kUnusable;
  std::string problem;
  std::string lineage;  ///< lineage_of() the manifest, or kLineageFile of an exported folder
};

/// The section of a manifest, and the file beside exported weights, that says which checkpoint keys
/// decided what the run that wrote it had loaded; without any there is none.
inline constexpr const char* kLineageSection = "lineage";
inline constexpr const char* kLineageFile = "lineage.txt";

/// Returns "" where the checkpoint has none.
std::string lineage_of(const CheckpointInfo& info);

/// Lists all step-N folders in the order of their steps, judged by manifest and file sizes. The
/// list is empty where the folder does not exist. Throws SystemError where the disk cannot be read.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& folder);

/// Returns FOLDER/aside-K with the lowest K from 1 that is not there yet.
std::filesystem::path next_aside(const std::filesystem::path& folder);

/// Moves what belongs to a branch that is left, step-N of FOLDER for all N from `first` on but the
/// folder `kept`, to `aside`, which is made if there is any. Returns their names, as "step-30,
/// step-40".
std::string set_aside(const std::filesystem::path& folder, int64_t first,
                      const std::filesystem::path& kept, const std::filesystem::path& aside);

/// Removes the oldest complete checkpoints beyond the newest `keep_latest_k` (0 keeps all), but
/// never step `just_written`, and returns the removed ones. Unusable folders are neither counted
/// nor removed.
std::vector<std::filesystem::path> purge(const std::filesystem::path& folder, int keep_latest_k,
                                         int64_t just_written);

}  // namespace tokamak
