// Files of known size that several threads write in large blocks, past the page cache where the
// file system takes direct I/O.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>

#include "tokamak/core/owned_fd.h"

namespace tokamak {

/// Direct I/O wants offsets in the file and addresses in memory to be multiples of this.
inline constexpr int64_t kBlockAlignment = 4096;

/// Zeroed memory of the system's pages, huge ones where it has them; its size is a multiple of
/// kBlockAlignment.
class BlockMemory {
 public:
  BlockMemory() = default;

  /// Throws SystemError if there is too little address space. Pages are taken at first use.
  explicit BlockMemory(int64_t bytes);

  BlockMemory(BlockMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

  BlockMemory& operator=(BlockMemory&& other) noexcept;
  BlockMemory(const BlockMemory&) = delete;
  BlockMemory& operator=(const BlockMemory&) = delete;
  ~BlockMemory();

  std::byte* data() const { return data_; }

  int64_t bytes() const { return bytes_; }

  /// Takes the pages of a range now, which changes no byte; does nothing where the system cannot.
  void take_pages(int64_t offset, int64_t bytes) const;

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// A file system may keep gigabytes back until a file is synced, and the call then takes minutes.
/// This asks for a sync after parts that are as large as the disk does in some seconds. Any threads
/// may use it.
class SyncPace {
 public:
  /// Takes note of bytes written; returns whether to sync now.
  bool wants_sync(int64_t written);

  void has_synced(std::chrono::duration<double> took);

 private:
  std::atomic<int64_t> unsynced_{0};
  std::atomic<int64_t> every_{int64_t{256} << 20};
};

class BlockFile {
 public:
  /// Creates the file and asks the file system for room for `bytes` bytes, so that a full disk is
  /// known before the first byte. Throws as FileWriter does.
  BlockFile(std::filesystem::path path, int64_t bytes);
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  /// Writes all of `block` at `offset`; any threads may write at once. Throws SystemError.
  /// REQUIRES: `offset` and the block's address are aligned, and so is its size unless it ends the
  /// file; memory up to the next multiple of the alignment can be read. Syncs as it writes.
  void write(int64_t offset, std::span<const std::byte> block);

  /// Calls fsync, then close. A file that is only destroyed promises nothing.
  void sync_and_close();

 private:
  void reserve() const;
  void sync();
  void use_page_cache();

  std::filesystem::path path_;
  int64_t bytes_;
  OwnedFd fd_;
  std::atomic<bool> is_direct_ = false;
  SyncPace pace_;
};

}  // namespace tokamak
