// How threads that run streams synchronize: a counter that others wait for, and a queue of work.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "tokamak/exec/bound_plan.h"

namespace tokamak {

/// Counts the tasks of a stream that have ended. One thread counts, others wait.
class Progress {
 public:
  /// REQUIRES: `count` is not less than before; only one thread calls it.
  void reach(int64_t count);

  /// Returns true once `count` tasks have ended, false once `fail` was called.
  bool wait(int64_t count) const;

  bool has(int64_t count) const { return count_.load(std::memory_order_acquire) >= count; }

  /// Wakes all waiters; from now on `wait` returns at once.
  void fail();

 private:
  // In sequentially consistent order, either the waiter sees the count or the counting thread sees
  // the waiter.
  std::atomic<int64_t> count_{0};
  mutable std::atomic<int> num_waiting_{0};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
};

/// One item's work on one stream.
struct StreamWork {
  const BoundSegment* segment = nullptr;
  const BoundSegment::Binding* binding = nullptr;
  size_t stream = 0;
  bool is_first = true;
  bool is_last = true;
  bool is_traced = false;
  std::vector<int64_t> issued;     ///< by stream: tasks issued before this item
  std::vector<StreamPoint> waits;  ///< what comes before it, counted since the executor began
};

/// A first-in, first-out queue that one thread takes from. It allocates nothing once the vectors of
/// its entries have grown.
class StreamQueue {
 public:
  explicit StreamQueue(size_t capacity) : ring_(capacity) {}

  /// Waits while the queue is full.
  void push(const StreamWork& work);

  /// Returns the oldest entry, which stays until pop; null once closed and empty.
  const StreamWork* front();
  void pop();

  void close();

  /// Returns true once all work is done, false after `patience`.
  bool wait_idle(std::chrono::milliseconds patience) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<StreamWork> ring_;
  size_t first_ = 0;
  size_t size_ = 0;
  bool is_closed_ = false;
};

}  // namespace tokamak
