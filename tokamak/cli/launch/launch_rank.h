// The process that stands between mpirun and a rank.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tokamak::cli {

/// Returns words for mpirun that start watchers in the job's `folder` on `host`; the rank's own
/// words follow.
std::vector<std::string> watcher_words(const std::filesystem::path& folder, const std::string& host,
                                       bool print_environment);

/// The signal by which the launcher tells a watcher of its host that the job is lost: its rank gets
/// a moment for its last words.
int job_lost_signal();

}  // namespace tokamak::cli
