#include "tokamak/cpu/team.h"

#include <chrono>
#include <climits>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tokamak::cpu {
namespace {

using Clock = std::chrono::steady_clock;

/// This is longer than the pauses between two loops of a step, and a fraction of the 3 ms or more
/// for which a thread stands still where another program has its core.
constexpr std::chrono::microseconds kSpinTime{200};

/// OMP_WAIT_POLICY sets it.
Clock::duration spin_time() {
  static const Clock::duration kTime = [] {
    const char* const text = std::getenv("OMP_WAIT_POLICY");
    const std::string_view policy = text == nullptr ? "" : text;
    if (policy == "active" || policy == "ACTIVE") return Clock::duration(std::chrono::hours(1));
    if (policy == "passive" || policy == "PASSIVE") return Clock::duration::zero();
    return Clock::duration(kSpinTime);
  }();
  return kTime;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Spins until done(), but only for a short time and not while is_in_the_way(). Returns done().
template <class Done, class InTheWay>
bool spin(Done done, InTheWay is_in_the_way) {
  if (done()) return true;
  const Clock::time_point end = Clock::now() + spin_time();
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      pause();
    }
  } while (!is_in_the_way() && Clock::now() < end);
  return done();
}

}  // namespace

constinit thread_local Place place;

void Word::sleep_while(uint32_t old) {
  sleepers_.fetch_add(1);
  ::syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
  sleepers_.fetch_sub(1);
}

void Word::wake() {
  if (sleepers_.load() == 0) return;
  ::syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

Team::Team(int size) : seats_(static_cast<size_t>(size)), process_(::getpid()) {
  for (int i = 1; i < size; ++i) workers_.emplace_back([this, i] { work(i); });
}

Team::~Team() {
  if (::getpid() != process_) {  // a fork has no workers
    for (std::thread& worker : workers_) worker.detach();
    return;
  }
  body_ = nullptr;
  offer(size());
  for (std::thread& worker : workers_) worker.join();
}

void Team::run(void (*body)(void*), void* data, int threads) {
  body_ = body;
  data_ = data;
  threads_ = threads;
  unfinished_.store(static_cast<uint32_t>(threads) - 1);
  seats_[0].core = ::sched_getcpu();
  offer(threads);
  enter(0);
  for (int i = 1; i < threads; ++i) run_if_left(i);
  wait_for_workers();
}

void Team::meet() {
  const uint32_t meeting = meetings_.load();
  if (arrived_.add(1) == static_cast<uint32_t>(threads_)) {
    arrived_.store(0);
    meetings_.add(1);
    meetings_.wake();
    return;
  }
  const auto is_over = [&] { return meetings_.load() != meeting; };
  if (spin(is_over, [] { return false; })) return;
  while (!is_over()) meetings_.sleep_while(meeting);
}

void Team::offer(int threads) {
  for (int i = 1; i < threads; ++i) {
    seat(i).part.store(1);
    seat(i).part.wake();
  }
}

void Team::enter(int thread) {
  const Place before = std::exchange(place, {this, thread, threads_});
  body_(data_);
  place = before;
}

void Team::finish_one() {
  if (unfinished_.add(UINT32_MAX) == 0) unfinished_.wake();
}

void Team::run_if_left(int thread) {
  if (!seat(thread).take()) return;
  seat(thread).core = -1;
  enter(thread);
  finish_one();
}

void Team::wait_for_workers() {
  const auto is_done = [&] { return unfinished_.load() == 0; };
  const auto is_in_the_way = [&] {
    const int here = ::sched_getcpu();
    for (int i = 1; i < threads_; ++i) {
      if (seat(i).core == here) return true;
    }
    return false;
  };
  if (spin(is_done, is_in_the_way)) return;
  for (uint32_t left = unfinished_.load(); left != 0; left = unfinished_.load())
    unfinished_.sleep_while(left);
}

void Team::work(int thread) {
  Seat& own = seat(thread);
  const int neighbour = thread ^ 1;
  const auto has_part = [&] { return own.is_left(); };
  const auto is_in_the_way = [&] { return seats_[0].core == ::sched_getcpu(); };
  while (true) {
    if (!spin(has_part, is_in_the_way)) own.part.sleep_while(0);
    if (!own.take()) continue;
    if (body_ == nullptr) return;
    own.core = ::sched_getcpu();
    enter(thread);
    if (neighbour != 0 && neighbour < threads_) run_if_left(neighbour);
    finish_one();
  }
}

}  // namespace tokamak::cpu
