#include "tokamak/checkpoint/atomic_folder.h"

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/file_call.h"
#include "tokamak/core/owned_fd.h"

namespace tokamak {
namespace fs = std::filesystem;

namespace {

constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kReplaced = ".replaced-";

std::string made_token() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("{}-{}", ::getpid(), now / std::chrono::microseconds(1));
}

// Returns the number of the attempt that a token begins with, or 0.
int64_t attempt_of(std::string_view token) {
  int64_t attempt = 0;
  if (token.starts_with('a'))
    std::from_chars(token.data() + 1, token.data() + token.size(), attempt);
  return attempt;
}

bool is_kept(std::string_view token, std::string_view keep_token) {
  return token == keep_token || attempt_of(token) > attempt_of(keep_token);
}

fs::path with_suffix(fs::path path, std::string_view mark, std::string_view token) {
  path += mark;
  path += token;
  return path;
}

std::string token_of(const fs::path& temporary) {
  const std::string name = temporary.filename().string();
  return name.substr(name.rfind(kTemporary) + kTemporary.size());
}

void sync_file(const fs::path& path) {
  const FileCall call("fsync", path);
  const OwnedFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) throw_errno("open " + path.string());
  if (::fsync(file.get()) != 0) throw_errno("fsync " + path.string());
}

void sync_tree(const fs::path& folder) {
  for (const fs::path& path : list_folder(folder)) {
    if (is_folder(path)) {
      sync_tree(path);
    } else {
      sync_file(path);
    }
  }
  sync_folder(folder);
}

bool swap_names(const fs::path& a, const fs::path& b) {
  const FileCall call("rename", a);
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return false;
  throw_errno(fmt::format("swap {} and {}", a.string(), b.string()));
}

}  // namespace

AtomicFolder::AtomicFolder(const fs::path& target, const std::string& token)
    : target_(target),
      path_(with_suffix(target, kTemporary, token.empty() ? made_token() : token)) {}

void AtomicFolder::make() const {
  const FileCall call("mkdir", path_);
  make_folders(path_);
}

void AtomicFolder::commit() {
  sync_tree(path_);
  if (!path_exists(target_)) return rename_durably(path_, target_);
  if (swap_names(path_, target_)) {
    sync_folder(target_.parent_path());
  } else {
    const fs::path replaced = with_suffix(target_, kReplaced, token_of(path_));
    rename_durably(target_, replaced);
    rename_durably(path_, target_);
    path_ = replaced;
  }
  discard();
}

void AtomicFolder::discard() noexcept {
  remove_by_files(path_);
}

// Many large files may take minutes, in which a watcher sees that they go.
void remove_by_files(const fs::path& folder) noexcept {
  std::error_code code;
  for (fs::directory_iterator at(folder, code); !code && at != fs::directory_iterator();
       at.increment(code)) {
    const FileCall call("unlink", at->path());
    fs::remove_all(at->path(), code);
  }
  fs::remove_all(folder, code);
}

void sweep_stale_folders(const fs::path& parent, const std::string& keep_token) {
  if (!is_folder(parent)) return;
  for (const fs::path& path : list_folder(parent)) {
    const std::string name = path.filename().string();
    if (!name.starts_with("step-")) continue;
    const auto replaced = name.find(kReplaced);
    if (replaced != std::string::npos && !path_exists(parent / name.substr(0, replaced))) {
      rename_durably(path, parent / name.substr(0, replaced));
      continue;
    }
    const auto temporary = name.find(kTemporary);
    const bool kept = !keep_token.empty() && temporary != std::string::npos &&
                      is_kept(name.substr(temporary + kTemporary.size()), keep_token);
    if ((temporary != std::string::npos || replaced != std::string::npos) && !kept)
      remove_by_files(path);
  }
}

}  // namespace tokamak
