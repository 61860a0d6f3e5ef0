// Copies between host and device concurrently with all streams, by several threads at once.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tokamak/gpu/vendor.h"

namespace tokamak::gpu {

/// A lane is a stream and pinned memory. A call takes one, or waits where all kMost are taken. The
/// device's copy engine moves a part while the calling thread copies the one before it between
/// pinned memory and the caller's.
class CopyLanes {
 public:
  explicit CopyLanes(int device) : device_(device) {}

  CopyLanes(const CopyLanes&) = delete;
  CopyLanes& operator=(const CopyLanes&) = delete;
  ~CopyLanes();

  /// Makes lanes until there are `count` of them, or kMost.
  void prepare(int count);

  /// Lets the copy engine write to `host` itself; where the system refuses, reads go on as before.
  void pin(std::byte* host, int64_t bytes);
  void unpin(std::byte* host);

  /// Both have ended on return; throw SystemError.
  void read(std::byte* host, const std::byte* device, int64_t bytes);
  void write(std::byte* device, const std::byte* host, int64_t bytes);

 private:
  static constexpr size_t kMost = 16;
  static constexpr int64_t kPartBytes = int64_t{4} << 20;

  struct Part {
    std::byte* pinned = nullptr;
    cudaEvent_t copied = nullptr;
  };

  struct Lane {
    Lane();
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;
    ~Lane();

    cudaStream_t stream = nullptr;
    std::array<Part, 2> parts;
  };

  // Gives the lane back at its end.
  class Taken;

  bool is_pinned(const std::byte* host, int64_t bytes);

  int device_;
  std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Lane*> free_;
  std::map<const std::byte*, int64_t> pinned_;  ///< bytes, by address
};

}  // namespace tokamak::gpu
