#include "tokamak/cli/output_queue.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "tokamak/core/error.h"

namespace tokamak::cli {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMostBytes = size_t{16} << 20;
constexpr size_t kPart = 4096;
/// How long a print waits for its own text, so that it comes before what other streams get next.
constexpr auto kInOrder = 50ms;
constexpr auto kLastPatience = 30s;
constexpr auto kPatienceAfterError = 3s;

/// Returns the bytes written; 0 where they cannot be.
size_t write_part(int fd, std::string_view text) {
  for (;;) {
    const ssize_t count = ::write(fd, text.data(), std::min(text.size(), kPart));
    if (count >= 0) return static_cast<size_t>(count);
    if (errno != EINTR && errno != EAGAIN) return 0;
    pollfd event{.fd = fd, .events = POLLOUT, .revents = 0};
    if (errno == EAGAIN) ::poll(&event, 1, -1);
  }
}

}  // namespace

struct OutputQueue::State {
  const int fd;
  std::mutex mutex;
  std::condition_variable changed;
  std::string waiting;
  int64_t lines_left_out = 0;
  uint64_t num_parts = 0;  ///< written
  bool is_writing = false;
  bool is_behind = false;  ///< a print has timed out
  bool is_ending = false;

  explicit State(int descriptor) : fd(descriptor) {}

  bool is_empty() const { return waiting.empty() && !is_writing; }

  ssize_t take(std::string_view text) {
    std::unique_lock lock(mutex);
    if (waiting.size() + text.size() > kMostBytes) {
      lines_left_out += std::ranges::count(text, '\n');
      return std::ssize(text);
    }
    if (const int64_t lines = std::exchange(lines_left_out, 0); lines > 0)
      waiting += fmt::format("[{} lines were left out: nobody read them]\n", lines);
    waiting += text;
    changed.notify_all();
    if (!is_behind) is_behind = !changed.wait_for(lock, kInOrder, [&] { return is_empty(); });
    return std::ssize(text);
  }

  void write_all() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return is_ending || !waiting.empty(); });
      if (waiting.empty()) return;
      const std::string text = std::exchange(waiting, "");
      is_writing = true;
      for (size_t at = 0; at < text.size();) {
        lock.unlock();
        const size_t count = write_part(fd, std::string_view(text).substr(at));
        lock.lock();
        if (count == 0) break;
        at += count;
        ++num_parts;
        changed.notify_all();
      }
      is_writing = false;
      is_behind = is_behind && !waiting.empty();
      changed.notify_all();
    }
  }

  void end(std::chrono::seconds patience) {
    std::unique_lock lock(mutex);
    is_ending = true;
    changed.notify_all();
    for (uint64_t seen = num_parts;; seen = num_parts) {
      const bool is_taken =
          changed.wait_for(lock, patience, [&] { return is_empty() || num_parts != seen; });
      if (!is_taken || is_empty()) return;
    }
  }
};

OutputQueue::OutputQueue(std::FILE*& stream)
    : stream_(stream), before_(stream), state_(std::make_shared<State>(::fileno(stream))) {
  std::fflush(before_);
  const auto take = [](void* state, const char* text, size_t size) {
    return static_cast<State*>(state)->take({text, size});
  };
  std::FILE* const queue = ::fopencookie(state_.get(), "w", {.read = nullptr, .write = take});
  if (queue == nullptr) throw_errno("fopencookie");
  sigset_t all;
  sigset_t mask;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &mask);  // signals are for the threads that await them
  std::thread([state = state_] { state->write_all(); }).detach();
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  stream_ = queue;
}

OutputQueue::~OutputQueue() {
  std::fclose(std::exchange(stream_, before_));
  state_->end(std::uncaught_exceptions() > 0 ? kPatienceAfterError : kLastPatience);
}

}  // namespace tokamak::cli
