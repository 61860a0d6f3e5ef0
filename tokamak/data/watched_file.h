// A file of which parts are read all through a run, while others may change it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <span>

#include "tokamak/core/owned_fd.h"

namespace tokamak {

/// An open regular file. A file that is renamed over its path changes nothing, since the one that
/// was opened is read on.
class WatchedFile {
 public:
  WatchedFile() = default;

  /// Throws Error naming the path if it cannot be opened.
  explicit WatchedFile(const std::filesystem::path& path);

  int64_t size() const { return size_; }

  /// Fills `out` with the bytes from `first` on. Throws Error naming the path if the file has been
  /// written to or cut since it was opened (its size or time of change differs), SystemError if it
  /// cannot be read. REQUIRES: the bytes lay inside the file when it was opened.
  void read(int64_t first, std::span<std::byte> out) const;

 private:
  void check_unchanged() const;

  std::filesystem::path path_;
  OwnedFd fd_;
  int64_t size_ = 0;
  timespec changed_{};
};

}  // namespace tokamak
