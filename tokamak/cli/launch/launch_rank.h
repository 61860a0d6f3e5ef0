// The process that stands between mpirun and a rank.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tokamak::cli {

/// How a rank ended.
struct RankEnd {
  int exit_code = 0;  ///< 128 + signal for a death by signal
  /// The job was already being ended when this rank ended.
  bool was_told = false;
  std::string host;
};

/// Returns what the watcher of `rank` has written in the job's folder, if anything.
std::optional<RankEnd> read_rank_end(const std::filesystem::path& folder, int64_t rank);

/// Returns words for mpirun that start watchers in the job's `folder` on `host`; the rank's own
/// words follow.
std::vector<std::string> watcher_words(const std::filesystem::path& folder, const std::string& host,
                                       bool print_environment);

}  // namespace tokamak::cli
