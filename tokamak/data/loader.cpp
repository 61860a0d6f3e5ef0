#include "tokamak/data/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "tokamak/core/error.h"
#include "tokamak/data/batch_stream.h"

namespace tokamak {

class Loader::Impl {
 public:
  explicit Impl(DataOptions options) : stream_(std::move(options)) {}

  void start() {
    if (thread_.joinable()) return;
    thread_ = std::jthread([this](const std::stop_token& token) { run(token); });
  }

  bool wait(std::chrono::milliseconds most) {
    start();
    const auto before = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    const bool is_there = changed_.wait_for(lock, most, [&] { return !ready_.empty() || error_; });
    wait_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
    return is_there;
  }

  int64_t progress() const { return stream_.progress(); }

  Batch next() {
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

  LoaderState state() const {
    TOK_CHECK(taken_ % stream_.batches_per_step() == 0, "data state inside a global batch");
    const int64_t steps = taken_ / stream_.batches_per_step();
    const int64_t window = first_window_ + steps * stream_.options().global_batch_size;
    return stream_.state_at(window);
  }

  void restore(const LoaderState& state) {
    stream_.check(state);
    stop();
    go_to(state.window);
  }

  void rewind() {
    stop();
    go_to(0);
  }

  std::vector<std::string> remarks() const { return stream_.remarks(); }

  double wait_s() const { return wait_s_; }

 private:
  void stop() {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    thread_.join();
  }

  void go_to(int64_t window) {
    ready_.clear();
    error_ = nullptr;
    first_window_ = window;
    taken_ = 0;
  }

  void run(const std::stop_token& token) {
    const auto room = static_cast<size_t>(std::max<int64_t>(1, stream_.options().prefetch));
    try {
      for (int64_t i = 0;; ++i) {
        Batch batch = stream_.read(first_window_, i, token);
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

  BatchStream stream_;
  int64_t first_window_ = 0;
  int64_t taken_ = 0;
  double wait_s_ = 0.0;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Batch> ready_;
  std::exception_ptr error_;
  std::jthread thread_;
};

Loader::Loader(DataOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

Loader::~Loader() = default;

void Loader::start() {
  impl_->start();
}

bool Loader::wait(std::chrono::milliseconds most) {
  return impl_->wait(most);
}

int64_t Loader::progress() const {
  return impl_->progress();
}

Batch Loader::next() {
  return impl_->next();
}

LoaderState Loader::state() const {
  return impl_->state();
}

void Loader::restore(const LoaderState& state) {
  impl_->restore(state);
}

void Loader::rewind() {
  impl_->rewind();
}

std::vector<std::string> Loader::remarks() const {
  return impl_->remarks();
}

double Loader::wait_s() const {
  return impl_->wait_s();
}

}  // namespace tokamak
