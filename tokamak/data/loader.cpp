#include "tokamak/data/loader.h"

#include <algorithm>
#include <utility>

#include "tokamak/core/error.h"
#include "tokamak/core/timing.h"
#include "tokamak/data/batch_stream.h"

namespace tokamak {

Loader::Loader(DataOptions options) : stream_(std::make_unique<BatchStream>(std::move(options))) {}

Loader::~Loader() = default;

void Loader::start() {
  if (thread_.joinable()) return;
  thread_ = std::jthread([this](const std::stop_token& token) { run(token); });
}

bool Loader::wait(std::chrono::milliseconds most) {
  start();
  const auto before = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  const bool is_there = changed_.wait_for(lock, most, [&] { return !ready_.empty() || error_; });
  wait_s_ += seconds_since(before);
  return is_there;
}

int64_t Loader::progress() const {
  return stream_->progress();
}

Batch Loader::next() {
  while (!wait(std::chrono::hours(1))) {
  }
  std::unique_lock lock(mutex_);
  if (ready_.empty()) std::rethrow_exception(error_);
  Batch batch = std::move(ready_.front());
  if (batch.empty()) return batch;
  ready_.pop_front();
  ++taken_;
  changed_.notify_all();
  return batch;
}

LoaderState Loader::state() const {
  TOK_CHECK(taken_ % stream_->batches_per_step() == 0, "data state inside a global batch");
  const int64_t steps = taken_ / stream_->batches_per_step();
  return stream_->state_at(first_window_ + steps * stream_->options().global_batch_size);
}

void Loader::restore(const LoaderState& state) {
  stream_->check(state);
  go_to(state.window);
}

void Loader::rewind() {
  go_to(0);
}

std::vector<std::string> Loader::remarks() const {
  return stream_->remarks();
}

void Loader::go_to(int64_t window) {
  if (thread_.joinable()) {
    thread_.request_stop();
    thread_.join();
  }
  ready_.clear();
  error_ = nullptr;
  first_window_ = window;
  taken_ = 0;
}

void Loader::run(const std::stop_token& token) {
  const auto room = static_cast<size_t>(std::max<int64_t>(1, stream_->options().prefetch));
  try {
    for (int64_t i = 0;; ++i) {
      Batch batch = stream_->read(first_window_, i, token);
      const bool last = batch.empty();
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, token, [&] { return ready_.size() < room; })) return;
      ready_.push_back(std::move(batch));
      changed_.notify_all();
      if (last) return;
    }
  } catch (const Stopped&) {
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

}  // namespace tokamak
