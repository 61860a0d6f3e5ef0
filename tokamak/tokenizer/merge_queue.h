// Orders the merges in a long word by a priority queue for keys that mostly come in rising runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

namespace tokamak {

/// A min-queue of 64-bit keys. Keys above the whole current run are kept aside unsorted and become
/// the next run, so that a million equal neighbours cost a sort rather than a heap of a million.
class MergeQueue {
 public:
  void clear() {
    run_.clear();
    next_run_.clear();
    at_ = 0;
    heap_ = {};
  }

  void push(uint64_t key) {
    if (run_.empty() || key > run_.back()) {
      next_run_.push_back(key);
    } else {
      heap_.push(key);
    }
  }

  /// Removes the smallest key; returns false if there is none.
  bool pop(uint64_t& key) {
    if (at_ == run_.size() && heap_.empty()) start_next_run();
    const bool from_run = at_ < run_.size();
    if (!heap_.empty() && (!from_run || heap_.top() < run_[at_])) {
      key = heap_.top();
      heap_.pop();
      return true;
    }
    if (from_run) key = run_[at_++];
    return from_run;
  }

 private:
  void start_next_run() {
    run_.swap(next_run_);
    next_run_.clear();
    at_ = 0;
    radix_sort();
  }

  /// Sorts byte by byte from the lowest and skips bytes that all keys share.
  void radix_sort() {
    for (uint32_t shift = 0; shift < 64; shift += 8) {
      std::array<size_t, 256> begin{};
      for (const uint64_t key : run_) ++begin[key >> shift & 0xFFU];
      size_t sum = 0;
      bool shared = false;
      for (size_t& count : begin) {
        shared = shared || count == run_.size();
        sum += count;
        count = sum - count;
      }
      if (shared) continue;
      sorted_.resize(run_.size());
      for (const uint64_t key : run_) sorted_[begin[key >> shift & 0xFFU]++] = key;
      run_.swap(sorted_);
    }
  }

  std::vector<uint64_t> run_;
  std::vector<uint64_t> next_run_;
  std::vector<uint64_t> sorted_;
  size_t at_ = 0;
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap_;
};

}  // namespace tokamak
