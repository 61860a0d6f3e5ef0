#include "tokamak/checkpoint/block_file.h"

#include <algorithm>
#include <cerrno>
#include <chrono>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file_call.h"

namespace tokamak {
namespace {

// Below this the page cache is as fast.
constexpr int64_t kLeastDirectBytes = int64_t{1} << 20;

constexpr int64_t kHugePage = int64_t{2} << 20;

int64_t aligned(int64_t bytes) {
  return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

}  // namespace

BlockMemory::BlockMemory(int64_t bytes) : bytes_(aligned(bytes)) {
  if (bytes_ == 0) return;
  void* mapped = ::mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw_errno(fmt::format("{} bytes of host memory", bytes_));
  data_ = static_cast<std::byte*>(mapped);
  if (bytes_ >= kHugePage) ::madvise(data_, static_cast<size_t>(bytes_), MADV_HUGEPAGE);
}

BlockMemory& BlockMemory::operator=(BlockMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

BlockMemory::~BlockMemory() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

void BlockMemory::take_pages(int64_t offset, int64_t bytes) const {
#ifdef MADV_POPULATE_WRITE
  ::madvise(data_ + offset, static_cast<size_t>(bytes), MADV_POPULATE_WRITE);
#else
  constexpr int kPopulateWrite = 23;  // Linux 5.14
  ::madvise(data_ + offset, static_cast<size_t>(bytes), kPopulateWrite);
#endif
}

bool SyncPace::wants_sync(int64_t written) {
  if (unsynced_.fetch_add(written) + written < every_) return false;
  unsynced_ = 0;
  return true;
}

void SyncPace::has_synced(std::chrono::duration<double> took) {
  constexpr std::chrono::seconds kQuick{1};
  constexpr std::chrono::seconds kSlow{8};
  constexpr int64_t kLeast = int64_t{32} << 20;
  constexpr int64_t kMost = int64_t{1} << 40;
  if (took < kQuick) every_ = std::min(every_ * 2, kMost);
  if (took > kSlow) every_ = std::max(every_ / 2, kLeast);
}

BlockFile::BlockFile(std::filesystem::path path, int64_t bytes)
    : path_(std::move(path)), bytes_(bytes) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  const FileCall call("open", path_);
  if (bytes >= kLeastDirectBytes) {
    fd_ = OwnedFd(::open(path_.c_str(), kFlags | O_DIRECT, 0644));
    is_direct_ = fd_.get() >= 0;
  }
  if (fd_.get() < 0) fd_ = OwnedFd(::open(path_.c_str(), kFlags, 0644));
  if (fd_.get() < 0) throw_path_errno("cannot write " + path_.string());
  reserve();
}

void BlockFile::reserve() const {
  if (bytes_ <= 0) return;

  struct statfs info {};

  // A file system in memory would take every page now, and again while it is written.
  if (::fstatfs(fd_.get(), &info) == 0 && info.f_type == TMPFS_MAGIC) {
    const auto free = static_cast<int64_t>(info.f_bavail) * info.f_bsize;
    if (info.f_blocks == 0 || free >= bytes_) return;  // without blocks it has no limit
    errno = ENOSPC;
  } else if (::fallocate(fd_.get(), 0, 0, bytes_) ==
             0) {  // as long as it will be: writers then share it
    return;
  }
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO)
    throw_errno(fmt::format("room for {} bytes in {}", bytes_, path_.string()));
}

void BlockFile::use_page_cache() {
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd_.get(), F_SETFL, flags & ~O_DIRECT) != 0)
    throw_errno("fcntl " + path_.string());
  is_direct_ = false;
}

void BlockFile::write(int64_t offset, std::span<const std::byte> block) {
  const int64_t size = std::ssize(block);
  for (int64_t done = 0; done < size;) {
    const FileCall call("write", path_);
    const bool is_direct = is_direct_;
    const int64_t end = is_direct ? aligned(size) : size;
    const ssize_t n =
        ::pwrite(fd_.get(), block.data() + done, static_cast<size_t>(end - done), offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EINVAL && is_direct) {
      use_page_cache();
      continue;
    }
    if (n < 0) throw_errno("write " + path_.string());
    done += n;
    if (is_direct && done < size && done % kBlockAlignment != 0) use_page_cache();
  }
  if (pace_.wants_sync(size)) sync();
}

void BlockFile::sync() {
  const FileCall call("fsync", path_);
  const auto start = std::chrono::steady_clock::now();
  if (::fsync(fd_.get()) != 0) throw_errno("fsync " + path_.string());
  pace_.has_synced(std::chrono::steady_clock::now() - start);
}

void BlockFile::sync_and_close() {
  {
    const FileCall call("truncate", path_);
    if (bytes_ % kBlockAlignment != 0 && ::ftruncate(fd_.get(), bytes_) != 0)
      throw_errno("truncate " + path_.string());
  }
  sync();
  const FileCall call("close", path_);
  if (::close(fd_.release()) != 0) throw_errno("close " + path_.string());
}

}  // namespace tokamak
