// Starts mpirun, or the watcher of a lone rank, as a process of the launcher.
#pragma once

#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace tokamak::launch {

struct LaunchJob;

/// Returns the words that start the job's watchers: mpirun's, or for one rank of this machine the
/// watcher's own. Throws Error if mpirun is missing or not Open MPI's.
std::vector<std::string> job_words(const LaunchJob& job, const std::filesystem::path& folder);

/// A process that leads a group of its own and dies with us.
class JobProcess {
 public:
  /// We read `stream` (1 or 2) of the new process, which gets no terminal because it may not read
  /// from one. `is_local`: ranks start on this host even inside a Slurm allocation.
  JobProcess(const std::vector<std::string>& words, int stream, bool is_local);
  JobProcess(const JobProcess&) = delete;
  JobProcess& operator=(const JobProcess&) = delete;
  /// Kills the group.
  ~JobProcess();

  pid_t id() const { return id_; }

  /// The read end of the stream.
  int output() const { return output_; }

  void send(int signal) const;
  void kill_group() const;

  /// Returns the exit code, or 128 + signal, once the process has ended.
  std::optional<int> ended();

 private:
  pid_t id_ = 0;
  int output_ = -1;
  std::optional<int> code_;
};

}  // namespace tokamak::launch
