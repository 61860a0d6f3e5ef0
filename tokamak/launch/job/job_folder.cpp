#include "tokamak/launch/job/job_folder.h"

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tokamak/core/error.h"

namespace tokamak::launch {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "tokamak-launch-";
constexpr const char* kMemory = "/dev/shm";

OwnedFd open_folder(const fs::path& folder) {
  return OwnedFd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

bool is_own_folder(const fs::path& path) {
  struct stat info {};

  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid();
}

fs::path make_folder() {
  for (const fs::path& parent : {fs::path(kMemory), fs::temp_directory_path()}) {
    std::string name = parent / fmt::format("{}XXXXXX", kPrefix);
    if (mkdtemp(name.data()) != nullptr) return name;
  }
  throw_errno("make a folder in " + fs::temp_directory_path().string());
}

/// A sweeper may remove the folder before it is locked.
std::pair<fs::path, FolderLock> make_locked_folder() {
  while (true) {
    const fs::path path = make_folder();
    std::error_code code;
    try {
      FolderLock lock(path);
      if (fs::exists(path, code)) return {path, std::move(lock)};
    } catch (const SystemError&) {
      if (fs::exists(path, code)) throw;
    }
  }
}

}  // namespace

FolderLock::FolderLock(const fs::path& folder) : fd_(open_folder(folder)) {
  if (fd_.get() < 0) throw_errno("open " + folder.string());
  if (flock(fd_.get(), LOCK_SH) != 0) throw_errno("lock " + folder.string());
}

JobFolder::JobFolder() : JobFolder((sweep_job_folders(), make_locked_folder())) {}

JobFolder::JobFolder(std::pair<fs::path, FolderLock> made)
    : path_(std::move(made.first)), lock_(std::move(made.second)) {}

JobFolder::~JobFolder() {
  std::error_code code;
  fs::remove_all(path_, code);
}

void remove_if_unused(const fs::path& folder) {
  const OwnedFd fd = open_folder(folder);
  std::error_code code;
  if (fd.get() >= 0 && flock(fd.get(), LOCK_EX | LOCK_NB) == 0) fs::remove_all(folder, code);
}

void sweep_job_folders() {
  for (const fs::path& parent : {fs::path(kMemory), fs::temp_directory_path()}) {
    std::error_code code;
    std::vector<fs::path> found;
    for (fs::directory_iterator entry(parent, code); !code && entry != fs::directory_iterator();
         entry.increment(code)) {
      if (entry->path().filename().string().rfind(kPrefix, 0) == 0) found.push_back(entry->path());
    }
    for (const fs::path& folder : found) {
      if (is_own_folder(folder)) remove_if_unused(folder);
    }
  }
}

}  // namespace tokamak::launch
