#include "tokamak/comm/test_world.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "tokamak/comm/host_world.h"
#include "tokamak/core/error.h"

namespace tokamak {
namespace {

using Clock = std::chrono::steady_clock;

/// How often a waiting rank checks whether the job has failed.
constexpr std::chrono::milliseconds kLook{10};

/// The state that a group's members share: one slot for a message from each member to each other.
struct ThreadGroup {
  struct Message {
    const std::byte* data = nullptr;
    int64_t bytes = 0;
    bool is_there = false;
    bool is_being_copied = false;
  };

  ThreadGroup(std::string group_name, int size)
      : name(std::move(group_name)),
        wake(static_cast<size_t>(size)),
        messages(static_cast<size_t>(size) * static_cast<size_t>(size)) {}

  Message& message(int from, int to) {
    return messages[static_cast<size_t>(from) * wake.size() + static_cast<size_t>(to)];
  }

  const std::string name;
  std::mutex mutex;
  std::vector<std::condition_variable> wake;  ///< by member: a message came to it or was taken
  std::vector<Message> messages;
  int num_joined = 0;  ///< guarded by the job's mutex
};

/// The state that all ranks share.
class ThreadJob {
 public:
  ThreadJob(int size, ThreadWorldOptions options)
      : timeout_(options.timeout), pages_(static_cast<size_t>(size)), has_left_(pages_.size()) {}

  std::chrono::milliseconds timeout() const { return timeout_; }

  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

  FlightPage& page(int rank) { return pages_[rank]; }

  bool has_left(int rank) const { return has_left_[rank]; }

  void leave(int rank) { has_left_[rank] = true; }

  /// Keeps the first failure.
  void fail(const std::string& why, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (has_failed_) return;
    why_ = why;
    error_ = std::move(error);
    has_failed_ = true;
  }

  bool has_failed() const { return has_failed_; }

  std::string why() {
    const std::lock_guard lock(mutex_);
    return why_;
  }

  void rethrow() {
    if (error_) std::rethrow_exception(error_);
  }

  std::string last_collectives() const {
    std::string text;
    for (const FlightPage& page : pages_) text += "\n  " + describe(page);
    return text;
  }

  /// Returns one group to the k-th call of every member with these ranks.
  std::shared_ptr<ThreadGroup> join(const std::string& name, std::vector<int> ranks, int call) {
    const std::lock_guard lock(mutex_);
    const auto size = static_cast<int>(ranks.size());
    const auto key = std::pair(std::move(ranks), call);
    auto& group = groups_[key];
    if (!group) group = std::make_shared<ThreadGroup>(name, size);
    auto mine = group;
    if (++group->num_joined == size) groups_.erase(key);
    return mine;
  }

 private:
  std::atomic<std::chrono::milliseconds> timeout_;  ///< for all ranks
  std::vector<FlightPage> pages_;
  std::vector<std::atomic<bool>> has_left_;
  std::atomic<bool> has_failed_ = false;
  std::mutex mutex_;
  std::string why_;
  std::exception_ptr error_;
  std::map<std::pair<std::vector<int>, int>, std::shared_ptr<ThreadGroup>> groups_;
};

class ThreadTransport final : public ByteTransport {
 public:
  ThreadTransport(ThreadJob& job, std::shared_ptr<ThreadGroup> group, std::vector<int> world_ranks,
                  int member)
      : job_(&job),
        group_(std::move(group)),
        world_ranks_(std::move(world_ranks)),
        member_(member) {}

  void exchange(std::span<const Send> sends, std::span<const Receive> receives,
                const Arrival& arrived) override {
    std::unique_lock lock(group_->mutex);
    try {
      exchange_locked(lock, sends, receives, arrived);
    } catch (...) {
      take_back(lock, sends);
      throw;
    }
  }

  [[noreturn]] void fail(const std::string& why) override {
    const SystemError error(why);
    job_->fail(why, std::make_exception_ptr(error));
    throw error;
  }

 private:
  void exchange_locked(std::unique_lock<std::mutex>& lock, std::span<const Send> sends,
                       std::span<const Receive> receives, const Arrival& arrived) {
    const auto deadline = Clock::now() + job_->timeout();
    for (const Send& send : sends) {
      group_->message(member_, send.to) = {
          .data = send.data, .bytes = send.bytes, .is_there = true};
      group_->wake[send.to].notify_one();
    }
    std::vector<size_t> open(receives.size());
    std::iota(open.begin(), open.end(), size_t{0});
    const auto was_sent = [&](const Send& send) {
      return !group_->message(member_, send.to).is_there;
    };
    while (true) {
      receive_what_is_there(lock, receives, open, arrived);
      const auto unsent = std::find_if_not(sends.begin(), sends.end(), was_sent);
      if (open.empty() && unsent == sends.end()) return;
      wait(lock, deadline, open.empty() ? unsent->to : receives[open.front()].from);
    }
  }

  /// Withdraws the sends after a failure, so that nobody reads this rank's buffers any more.
  void take_back(std::unique_lock<std::mutex>& lock, std::span<const Send> sends) {
    for (const Send& send : sends) {
      auto& message = group_->message(member_, send.to);
      while (message.is_being_copied) group_->wake[member_].wait(lock);
      message.is_there = false;
    }
  }

  /// Leaves in `open` the indices of receives that have not arrived yet.
  void receive_what_is_there(std::unique_lock<std::mutex>& lock, std::span<const Receive> receives,
                             std::vector<size_t>& open, const Arrival& arrived) {
    for (size_t i = 0; i < open.size();) {
      const Receive& receive = receives[open[i]];
      auto& message = group_->message(receive.from, member_);
      if (!message.is_there) {
        ++i;
        continue;
      }
      TOK_CHECK(message.bytes <= receive.bytes, "group \"{}\": {} bytes from {}, room for {}",
                group_->name, message.bytes, world_ranks_[receive.from], receive.bytes);
      message.is_being_copied = true;
      lock.unlock();
      if (message.bytes > 0) {
        std::memcpy(receive.data, message.data, message.bytes);
      }
      lock.lock();
      message.is_being_copied = false;
      message.is_there = false;
      group_->wake[receive.from].notify_one();
      if (arrived) arrived(open[i]);
      open.erase(open.begin() + static_cast<int64_t>(i));
    }
  }

  /// Waits until something may have changed. `peer` is a member that this rank waits for.
  void wait(std::unique_lock<std::mutex>& lock, Clock::time_point deadline, int peer) {
    const int rank = world_ranks_[member_];
    const int peer_rank = world_ranks_[peer];
    const auto waiting = [&] {
      return fmt::format("rank {} waits for rank {} in group \"{}\"", rank, peer_rank,
                         group_->name);
    };
    if (job_->has_failed()) throw SystemError(fmt::format("{}: {}", waiting(), job_->why()));
    if (job_->has_left(peer_rank)) {
      fail(fmt::format("{}, which has returned; the last collectives:{}", waiting(),
                       job_->last_collectives()));
    }
    if (Clock::now() > deadline) {
      fail(fmt::format("{} for {} s; the last collectives:{}", waiting(),
                       std::chrono::duration<double>(job_->timeout()).count(),
                       job_->last_collectives()));
    }
    group_->wake[member_].wait_for(lock, kLook);
  }

  ThreadJob* job_;
  std::shared_ptr<ThreadGroup> group_;
  std::vector<int> world_ranks_;
  int member_;
};

class ThreadWorld final : public HostWorld {
 public:
  ThreadWorld(ThreadJob& job, int rank, int size)
      : HostWorld(rank, size, job.page(rank)), job_(&job) {}

  void set_timeout(std::chrono::milliseconds timeout) override { job_->set_timeout(timeout); }

  void abort(int code, const std::string& why) override {
    const SystemError error(fmt::format("rank {}: exit {}: {}", rank(), code, why));
    job_->fail(error.what(), std::make_exception_ptr(error));
    throw error;
  }

 private:
  std::unique_ptr<ByteTransport> make_transport(const std::string& name, std::span<const int> ranks,
                                                int member) override {
    std::vector<int> members(ranks.begin(), ranks.end());
    auto group = job_->join(name, members, calls_[members]++);
    auto transport = std::make_unique<ThreadTransport>(*job_, group, members, member);
    if (group->name != name) {
      transport->fail(
          fmt::format("ranks differ: rank {} makes group \"{}\" where others make "
                      "\"{}\"",
                      rank(), name, group->name));
    }
    return transport;
  }

  ThreadJob* job_;
  std::map<std::vector<int>, int> calls_;  ///< calls of make_group, by its ranks
};

void run_rank(ThreadJob& job, int rank, int size, const std::function<void(World&)>& body) {
  try {
    ThreadWorld world(job, rank, size);
    body(world);
  } catch (const std::exception& error) {
    job.fail(fmt::format("rank {} failed: {}", rank, error.what()), std::current_exception());
  } catch (...) {
    job.fail(fmt::format("rank {} failed", rank), std::current_exception());
  }
  job.leave(rank);
}

}  // namespace

void run_ranks(int num_ranks, const std::function<void(World& world)>& body,
               ThreadWorldOptions options) {
  TOK_CHECK(num_ranks >= 1, "{} ranks", num_ranks);
  ThreadJob job(num_ranks, options);
  for (int rank = 0; rank < num_ranks; ++rank) job.page(rank).rank = rank;
  {
    std::vector<std::jthread> threads;
    threads.reserve(num_ranks);
    for (int rank = 0; rank < num_ranks; ++rank) {
      threads.emplace_back(
          [&job, rank, num_ranks, &body] { run_rank(job, rank, num_ranks, body); });
    }
  }
  job.rethrow();
}

}  // namespace tokamak
