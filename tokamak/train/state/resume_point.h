// Which checkpoint a job resumes from: one choice for all ranks.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tokamak/comm/communicator.h"

namespace tokamak {

struct ResumePoint {
  /// The newest resumable checkpoint whose every byte is right.
  std::optional<std::filesystem::path> path;
  /// One line for each newer one that is damaged or incomplete.
  std::vector<std::string> skipped;
  /// The newest folder step-N of any kind; empty where there is none.
  std::filesystem::path newest_of_any_kind;
};

/// Rank 0 lists the checkpoints, and each rank hashes a share of the shards. Collective.
ResumePoint find_resume_point(World& world, const std::filesystem::path& folder);

/// Returns the last step that any usable checkpoint in `folder`, resumable or not, has done; 0
/// without one. Collective.
int64_t last_saved_step(World& world, const std::filesystem::path& folder);

}  // namespace tokamak
