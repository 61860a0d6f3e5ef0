// The folder of one attempt of a job on one host: flight records, ends of ranks, and what Open MPI
// keeps in shared memory and on disk. It is in memory (/dev/shm) where that exists, else in
// TMPDIR.
#pragma once

#include <filesystem>
#include <utility>

#include "tokamak/core/owned_fd.h"

namespace tokamak::launch {

/// A lock on a folder that several processes share while they use it. It ends with the process,
/// however that ends.
class FolderLock {
 public:
  /// Locks `folder`, which must exist; throws SystemError.
  explicit FolderLock(const std::filesystem::path& folder);

 private:
  OwnedFd fd_;
};

/// The launcher's folder, which is new for each attempt and is removed with this object.
class JobFolder {
 public:
  /// Removes folders of jobs whose processes have all ended, then makes one. Throws SystemError.
  JobFolder();
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;
  ~JobFolder();

  const std::filesystem::path& path() const { return path_; }

 private:
  explicit JobFolder(std::pair<std::filesystem::path, FolderLock> made);

  std::filesystem::path path_;
  FolderLock lock_;
};

/// Removes `folder` if no process has it locked.
void remove_if_unused(const std::filesystem::path& folder);

/// Removes every job's folder of this user on this host that no process has locked.
void sweep_job_folders();

}  // namespace tokamak::launch
