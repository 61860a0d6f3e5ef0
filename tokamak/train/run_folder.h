// Who writes to a run's folder: one attempt of one job at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tokamak/core/owned_fd.h"

namespace tokamak {

/// A process that writes to a run's folder, as FOLDER/run.lock holds it.
struct FolderHolder {
  /// 1 for the first process that took the folder, then more for each, also if a file was damaged.
  int64_t attempt = 0;
  int64_t pid = 0;
  std::string host;
  std::string job;      ///< "Slurm job 4711", or empty where nobody says
  int64_t restart = 0;  ///< how often the job was started again
};

std::string to_text(const FolderHolder& holder);

/// Returns nothing where the first line is not to_text()'s.
std::optional<FolderHolder> parse_holder(const std::string& text);

/// Returns this process: its job and restart are those of TOKAMAK_JOB and TOKAMAK_RESTART, else of
/// SLURM_JOB_ID and SLURM_RESTART_COUNT.
FolderHolder this_process();

/// Throws as make_folders() would where a file is in the way or a folder may not be written; makes
/// nothing.
void check_can_make(const std::filesystem::path& folder);

/// Throws Error as RunFolder() would where the folder cannot be made or another process holds it;
/// writes nothing.
void check_run_folder(const std::filesystem::path& folder);

/// A folder taken by this process. The lock goes with the process, however it ends.
class RunFolder {
 public:
  /// Makes the folder, locks it and counts the attempt. A process of the same job with fewer
  /// restarts is superseded, even if it still runs; one that is ending is waited for. Throws Error
  /// naming the process, host and job of any other that holds the folder. Where the file system has
  /// no locks, the last one to come has the folder.
  RunFolder(const std::filesystem::path& folder, FolderHolder me);
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  int64_t attempt() const { return me_.attempt; }

  /// Throws Error if another process has taken the folder since: this one must not touch it any
  /// more.
  void check() const;

 private:
  bool take();
  void supersede();
  void write(int fd);

  std::filesystem::path path_;
  FolderHolder me_;
  OwnedFd fd_;
};

}  // namespace tokamak
