// Which checkpoint a job resumes from: one choice for all ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tokamak/comm/communicator.h"

namespace tokamak {

struct ResumePoint {
  /// The newest resumable checkpoint that every rank could load.
  std::optional<std::filesystem::path> path;
  /// What is wrong with the newest one, if it is damaged or incomplete.
  std::string problem;
  /// The newest folder step-N of any kind; empty where there is none.
  std::filesystem::path newest_of_any_kind;
};

/// Rank 0 lists the checkpoints. Each rank calls `load` for the newest that can be resumed; if that
/// throws Damaged on any rank, all go back to the one before. Other errors of `load` are thrown on
/// all ranks alike. `skip` gets a line for each checkpoint that is passed over. Collective.
ResumePoint find_resume_point(World& world, const std::filesystem::path& folder,
                              const std::function<void(const std::filesystem::path&)>& load,
                              const std::function<void(const std::string&)>& skip);

struct FinishedRun {
  /// The step of the newest checkpoint of any kind that has done all the steps asked for,
  /// if its every byte is right.
  std::optional<int64_t> step;
  /// One line for each that is damaged.
  std::vector<std::string> damaged;
};

/// Each rank hashes a share, by `num_threads` threads. Collective.
FinishedRun find_finished_run(World& world, const std::filesystem::path& folder, int64_t steps,
                              int num_threads = 1);

}  // namespace tokamak
