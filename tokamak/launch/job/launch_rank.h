// The process that stands between mpirun and a rank.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tokamak::launch {

/// Returns words for mpirun that start watchers in the job's `folder` on `host`; the rank's own
/// words follow.
std::vector<std::string> watcher_words(const std::filesystem::path& folder, const std::string& host,
                                       bool print_environment);

/// `tokamak launch-rank`, which watcher_words() start: runs a rank with its words, which are the
/// last of `args`, and returns its exit code.
int run_launch_rank(std::span<const std::string> args);

/// The signal by which the launcher tells a watcher of its host that the job is lost: its rank gets
/// a moment for its last words.
int job_lost_signal();

}  // namespace tokamak::launch
