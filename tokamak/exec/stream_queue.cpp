#include "tokamak/exec/stream_queue.h"

#include <limits>

namespace tokamak {

void Progress::reach(int64_t count) {
  // After a failure the count stays above any other.
  int64_t before = count_.load(std::memory_order_relaxed);
  while (before < count && !count_.compare_exchange_weak(before, count)) {
  }
  if (num_waiting_.load() == 0) return;
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

bool Progress::wait(int64_t count) const {
  constexpr int64_t kFailed = std::numeric_limits<int64_t>::max();
  int64_t now = count_.load(std::memory_order_acquire);
  if (now < count) {
    std::unique_lock lock(mutex_);
    num_waiting_.fetch_add(1);
    changed_.wait(lock, [&] { return (now = count_.load()) >= count; });
    num_waiting_.fetch_sub(1);
  }
  return now != kFailed;
}

void Progress::fail() {
  reach(std::numeric_limits<int64_t>::max());
}

void StreamQueue::push(const StreamWork& work) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return size_ < ring_.size(); });
  ring_[(first_ + size_) % ring_.size()] = work;
  ++size_;
  changed_.notify_all();
}

const StreamWork* StreamQueue::front() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return size_ > 0 || is_closed_; });
  return size_ > 0 ? &ring_[first_] : nullptr;
}

void StreamQueue::pop() {
  const std::lock_guard lock(mutex_);
  first_ = (first_ + 1) % ring_.size();
  --size_;
  changed_.notify_all();
}

void StreamQueue::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
}

bool StreamQueue::wait_idle(std::chrono::milliseconds patience) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [&] { return size_ == 0; });
}

}  // namespace tokamak
