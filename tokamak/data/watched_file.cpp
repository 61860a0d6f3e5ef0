#include "tokamak/data/watched_file.h"

#include <cerrno>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak {
namespace {

struct stat state_of(int fd, const std::filesystem::path& path) {
  struct stat info {};

  if (::fstat(fd, &info) != 0) throw_errno("fstat " + path.string());
  return info;
}

}  // namespace

WatchedFile::WatchedFile(const std::filesystem::path& path)
    : path_(path), fd_(open_regular_file(path)) {
  const struct stat info = state_of(fd_.get(), path_);
  size_ = info.st_size;
  changed_ = info.st_mtim;
}

void WatchedFile::check_unchanged() const {
  const struct stat info = state_of(fd_.get(), path_);
  TOK_REQUIRE(
      info.st_size == size_,
      "{}: the file has {} bytes, it had {} when the run began; data must not change during "
      "a run",
      path_.string(), info.st_size, size_);
  TOK_REQUIRE(
      info.st_mtim.tv_sec == changed_.tv_sec && info.st_mtim.tv_nsec == changed_.tv_nsec,
      "{}: the file has been written to since the run began; data must not change during a run",
      path_.string());
}

void WatchedFile::read(int64_t first, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::pread(fd_.get(), out.data() + done, out.size() - done,
                              first + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno("read " + path_.string());
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  check_unchanged();
  TOK_CHECK(done == out.size(), "{}: {} of {} bytes at {}", path_.string(), done, out.size(),
            first);
}

}  // namespace tokamak
