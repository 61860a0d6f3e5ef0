#include "tokamak/train/state/step_slot.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <span>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "tokamak/core/chunk_hash.h"
#include "tokamak/core/error.h"
#include "tokamak/core/in_parallel.h"

namespace tokamak {
namespace {

// This much at a time is registered with the device.
constexpr int64_t kPinnedBytes = int64_t{8} << 20;
// Of the whole file, pin_more() pins this part, or a few blocks where that is less.
constexpr int64_t kPinnedShare = 32;
constexpr int64_t kFewBlocks = 16;

#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateWrite = 23;  // Linux 5.14
#endif

size_t num_blocks(int64_t bytes) {
  return static_cast<size_t>((bytes + kPinnedBytes - 1) / kPinnedBytes);
}

}  // namespace

StepSlot::StepSlot(const std::filesystem::path& path, int64_t bytes, int64_t data_at,
                   Backend& backend, int num_threads)
    : backend_(backend),
      path_(path),
      bytes_(bytes),
      data_at_(data_at),
      num_threads_(num_threads),
      fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600)) {
  if (fd_.get() < 0) throw_errno("open " + path.string());

  struct stat info {};

  int error = ::fstat(fd_.get(), &info) != 0 ? errno : 0;
  if (error == 0 && info.st_size != bytes && ::ftruncate(fd_.get(), 0) != 0) error = errno;
  constexpr int64_t kBlock = 512;  // of st_blocks
  if (info.st_size == bytes) held_bytes_ = info.st_blocks * kBlock;
  if (error == 0 && ::ftruncate(fd_.get(), bytes) != 0) error = errno;
  void* const memory = error != 0 ? MAP_FAILED
                                  : ::mmap(nullptr, static_cast<size_t>(bytes),
                                           PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (error == 0 && memory == MAP_FAILED) error = errno;
  if (error != 0) {
    ::unlink(path.c_str());
    errno = error;
    throw_errno(fmt::format("map {} bytes of {}", bytes, path.string()));
  }
  base_ = static_cast<std::byte*>(memory);
}

StepSlot::~StepSlot() {
  in_parallel(num_blocks(pinned_bytes_), num_threads_,
              [&](size_t i) { backend_.unpin(base_ + static_cast<int64_t>(i) * kPinnedBytes); });
  ::munmap(base_, static_cast<size_t>(bytes_));
}

void StepSlot::take(int64_t at, int64_t bytes) const {
  struct statvfs space {};

  const bool is_known = ::fstatvfs(fd_.get(), &space) == 0 && space.f_blocks > 0;
  const auto free = static_cast<int64_t>(space.f_bavail * space.f_frsize);
  if (is_known && at + bytes > held_bytes_ && free < bytes + kLeftBytes) {
    errno = ENOSPC;
    throw_errno(fmt::format("take {} bytes in {}", bytes_, path_.string()));
  }
  if (::madvise(base_ + at, static_cast<size_t>(bytes), kPopulateWrite) == 0) return;
  int error = errno;
  if (error == EINVAL) error = ::posix_fallocate(fd_.get(), at, bytes);
  if (error == 0) return;
  errno = error == EFAULT ? ENOSPC : error;  // the file system has no page left
  throw_errno(fmt::format("take {} bytes in {}", bytes_, path_.string()));
}

void StepSlot::pin_more() {
  const int64_t most = std::max(kFewBlocks, bytes_ / kPinnedBytes / kPinnedShare) * kPinnedBytes;
  const int64_t first = pinned_bytes_;
  const int64_t end = std::min(bytes_, first + most);
  in_parallel(num_blocks(end - first), num_threads_, [&](size_t i) {
    const int64_t at = first + static_cast<int64_t>(i) * kPinnedBytes;
    backend_.pin(base_ + at, std::min(kPinnedBytes, end - at));
  });
  pinned_bytes_ = end;
}

void StepSlot::clear() {
  StepHeader& header = *reinterpret_cast<StepHeader*>(base_);
  std::atomic_ref(header.hash).store(0, std::memory_order_seq_cst);
}

void StepSlot::seal(int64_t step, const std::string& text, int64_t data_bytes, uint64_t data_hash) {
  TOK_CHECK(std::ssize(text) <= data_at_ - kPage, "{} bytes of train state", text.size());
  std::memcpy(base_ + kPage, text.data(), text.size());
  StepHeader& header = *reinterpret_cast<StepHeader*>(base_);
  header.step = step;
  header.text_bytes = std::ssize(text);
  header.data_bytes = data_bytes;
  header.data_hash = data_hash;
  std::atomic_ref(header.hash).store(own_hash(header), std::memory_order_seq_cst);
}

std::optional<StepHeader> StepSlot::header(int64_t data_bytes) const {
  StepHeader header;
  std::memcpy(&header, base_, sizeof header);
  const bool has_sizes = header.hash != 0 && header.text_bytes >= 0 &&
                         header.text_bytes <= data_at_ - kPage && header.data_bytes == data_bytes;
  if (!has_sizes || header.hash != own_hash(header)) return std::nullopt;
  return header;
}

Json StepSlot::train_state(const StepHeader& header) const {
  const auto* const text = reinterpret_cast<const char*>(base_ + kPage);
  return parse_json({text, static_cast<size_t>(header.text_bytes)}, "the last step in memory");
}

uint64_t StepSlot::own_hash(const StepHeader& header) const {
  const auto whole = std::as_bytes(std::span(&header, 1)).subspan(sizeof header.hash);
  const std::array hashes{hash_of(whole),
                          hash_of({base_ + kPage, static_cast<size_t>(header.text_bytes)})};
  return hash_of(std::as_bytes(std::span(hashes))) | 1U;
}

}  // namespace tokamak
