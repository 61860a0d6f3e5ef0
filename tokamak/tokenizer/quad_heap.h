// A heap of 64-bit keys with four children a node: half the depth of a binary one, one cache line
// a level.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tokamak {

/// A min-heap over a vector that it borrows.
class QuadHeap {
 public:
  /// Takes `keys` in any order.
  explicit QuadHeap(std::vector<uint64_t>& keys) : keys_(keys) {
    if (std::is_sorted(keys_.begin(), keys_.end())) return;
    for (size_t at = keys_.size() / 4 + 1; at-- > 0;) sift_down(at);
  }

  bool empty() const { return keys_.empty(); }

  void push(uint64_t key) {
    size_t at = keys_.size();
    keys_.push_back(key);
    while (at > 0) {
      const size_t parent = (at - 1) / 4;
      if (keys_[parent] <= key) break;
      keys_[at] = keys_[parent];
      at = parent;
    }
    keys_[at] = key;
  }

  /// Removes and returns the smallest key. REQUIRES: not empty.
  uint64_t pop() {
    const uint64_t top = keys_.front();
    keys_.front() = keys_.back();
    keys_.pop_back();
    if (!keys_.empty()) sift_down(0);
    return top;
  }

 private:
  void sift_down(size_t at) {
    if (at >= keys_.size()) return;
    const uint64_t key = keys_[at];
    for (size_t child = at * 4 + 1; child < keys_.size(); child = at * 4 + 1) {
      const size_t end = std::min(child + 4, keys_.size());
      size_t least = child;
      for (size_t i = child + 1; i < end; ++i) {
        if (keys_[i] < keys_[least]) least = i;
      }
      if (key <= keys_[least]) break;
      keys_[at] = keys_[least];
      at = least;
    }
    keys_[at] = key;
  }

  std::vector<uint64_t>& keys_;
};

}  // namespace tokamak
