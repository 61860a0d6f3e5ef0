// The folder of a run's checkpoints: FOLDER/step-N.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

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
};

/// Lists all step-N folders in the order of their steps, judged by manifest and file sizes. The
/// list is empty where the folder does not exist. Throws SystemError where the disk cannot be read.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& folder);

/// Removes the oldest complete checkpoints beyond the newest `keep_latest_k` (0 keeps all), but
/// never step `just_written`, and returns the removed ones. Unusable folders are neither counted
/// nor removed.
std::vector<std::filesystem::path> purge(const std::filesystem::path& folder, int keep_latest_k,
                                         int64_t just_written);

}  // namespace tokamak
