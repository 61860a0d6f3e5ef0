#include "tokamak/cpu/team.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <ctime>
#include <string_view>
#include <utility>

#include <fcntl.h>
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

/// A time slice of the scheduler, or a bit more. The times on a core and without one tell after
/// some of these what a thread shares.
constexpr std::chrono::milliseconds kSlice{4};
constexpr std::chrono::milliseconds kLook{10 * kSlice};
constexpr std::chrono::milliseconds kLookOfAThread{1};  // reading a delay takes a microsecond
constexpr std::chrono::milliseconds kTry{5 * kSlice};

constexpr std::chrono::milliseconds kShortestPairs{250};
constexpr std::chrono::milliseconds kLongestPairs{2000};
constexpr std::chrono::seconds kPauseAfterPairs{1};
constexpr std::chrono::minutes kPauseAfterVainYields{1};

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

Clock::duration cpu_time_of_thread() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

void use(const cpu_set_t& cores) {
  ::sched_setaffinity(0, sizeof cores, &cores);
}

void stay_on(int core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  use(one);
}

/// Measures which part of the time this thread has a core.
class ShareOfTime {
 public:
  void begin() {
    begin_ = Clock::now();
    cpu_time_ = cpu_time_of_thread();
  }

  Clock::duration passed(Clock::time_point now) const { return now - begin_; }

  double so_far() const {
    const auto on_a_core = static_cast<double>((cpu_time_of_thread() - cpu_time_).count());
    return on_a_core / static_cast<double>((Clock::now() - begin_).count());
  }

 private:
  Clock::time_point begin_ = Clock::now();
  Clock::duration cpu_time_ = cpu_time_of_thread();
};

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

RunDelay::~RunDelay() {
  if (file_ >= 0) ::close(file_);
}

void RunDelay::watch_this_thread() {
  file_ = ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
}

std::chrono::nanoseconds RunDelay::more() {
  std::array<char, 64> text{};  // time on cores, time without one, time slices
  const ssize_t size = file_ >= 0 ? ::pread(file_, text.data(), text.size(), 0) : 0;
  const char* const end = text.data() + std::max<ssize_t>(size, 0);
  const char* const space = std::find(static_cast<const char*>(text.data()), end, ' ');
  int64_t now = last_;
  if (space != end) std::from_chars(space + 1, end, now);
  return std::chrono::nanoseconds(now - std::exchange(last_, now));
}

Team::Team(int size) : seats_(static_cast<size_t>(size)), process_(::getpid()) {
  if (::sched_getaffinity(0, sizeof cores_, &cores_) != 0)  // there are more than it can hold
    pairs_from_ = Clock::time_point::max();
  seats_[0].delay.watch_this_thread();
  for (int i = 1; i < size; ++i) workers_.emplace_back([this, i] { work(i); });
}

Team::~Team() {
  if (::getpid() != process_) {  // a fork has no workers
    for (std::thread& worker : workers_) worker.detach();
    return;
  }
  body_ = nullptr;
  is_in_pairs_ = false;
  offer(size());
  for (std::thread& worker : workers_) worker.join();
}

void Team::run(void (*body)(void*), void* data, int threads) {
  constexpr int kRegionsBetweenLooks = 8;
  if (++regions_ % kRegionsBetweenLooks == 0) look_around(Clock::now());
  body_ = body;
  data_ = data;
  threads_ = threads;
  has_barrier_ = false;
  unfinished_.store(static_cast<uint32_t>(threads) - 1);
  begin(seats_[0]);
  offer(threads);
  enter(0);
  for (int i = 1; i < threads; ++i) run_if_left(i);
  ++seats_[0].moves;
  wait_for_workers();
}

void Team::meet() {
  has_barrier_ = true;
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

void Team::begin(Seat& own) {
  ++own.moves;
  own.core = ::sched_getcpu();
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
  own.delay.watch_this_thread();
  own.time_in_pairs = kShortestPairs;
  const int neighbour = thread ^ 1;
  const auto stands_by = [&] { return thread % 2 == 1 && is_in_pairs_; };
  const auto has_part = [&] { return own.is_left(); };
  const auto is_in_the_way = [&] { return seats_[0].core == ::sched_getcpu(); };
  while (true) {
    if (stands_by()) stand_by(own, seat(neighbour));
    if (!spin(has_part, is_in_the_way)) {
      if (own.is_apart && is_in_the_way()) {
        own.is_apart = false;
        use(cores_);
      }
      own.part.sleep_while(0);
    }
    if (stands_by() && !has_barrier_) continue;
    if (!own.take()) continue;
    if (body_ == nullptr) return;
    begin(own);
    enter(thread);
    if (neighbour != 0 && neighbour < threads_) run_if_left(neighbour);
    ++own.moves;
    finish_one();
  }
}

/// Whether the thread of the seat has had no part to run for some time.
bool Team::Rest::is_long(const Seat& seat, Clock::time_point now) {
  if (std::exchange(moves_, seat.moves) == moves_ && moves_ % 2 == 0)
    return now - begin_ > kSpinTime;
  begin_ = now;
  return false;
}

/// Moves this thread away from its neighbour's core. Returns whether another has time for it.
bool Team::finds_core(const Seat& own, const Seat& neighbour) const {
  cpu_set_t others = cores_;
  const int taken = neighbour.core;
  if (taken >= 0 && taken < CPU_SETSIZE) CPU_CLR(taken, &others);
  if (CPU_COUNT(&others) == 0) return false;
  use(others);
  const ShareOfTime share;
  Rest rest;
  for (Clock::time_point now = Clock::now(); share.passed(now) < kTry; now = Clock::now()) {
    if (!can_stand_by(own) || rest.is_long(neighbour, now)) return false;
    pause();
  }
  return share.so_far() > 0.75;
}

/// Stays on the neighbour's core while the team works in pairs and this thread's part can wait.
void Team::stand_by(Seat& own, const Seat& neighbour) {
  own.is_apart = false;
  int core = -1;
  ShareOfTime share;
  ShareOfTime share_of_slice;
  Rest rest;
  while (can_stand_by(own)) {
    const Clock::time_point now = Clock::now();
    const bool is_slice_over = share_of_slice.passed(now) > kSlice;
    // Nobody else wants a core that this thread has most of the time: the neighbour sleeps.
    if (rest.is_long(neighbour, now) || (is_slice_over && share_of_slice.so_far() > 0.75)) {
      own.part.sleep_while(0);
      rest = Rest();
    }
    if (is_slice_over) share_of_slice.begin();
    if (now > own.next_try) {
      if (finds_core(own, neighbour)) {
        own.is_apart = true;  // and remains there: it could be woken where its neighbour is
        leave_pairs(kPauseAfterPairs);
        break;
      }
      own.next_try = Clock::now() + own.time_in_pairs;
      own.time_in_pairs = std::min<Clock::duration>(2 * own.time_in_pairs, kLongestPairs);
      core = -1;
      share.begin();
    } else if (share.passed(now) > kLook) {
      // Some kernels give a thread that yields its share all the same.
      if (share.so_far() > 0.25) leave_pairs(kPauseAfterVainYields);
      share.begin();
    }
    const int there = neighbour.core;
    if (there != core && there >= 0 && there < CPU_SETSIZE) stay_on(core = there);
    ::sched_yield();
  }
  if (!own.is_apart) use(cores_);
  if (is_in_pairs_) return;
  own.next_try = Clock::now();
  own.time_in_pairs = kShortestPairs;
}

void Team::leave_pairs(Clock::duration pause) {
  pairs_from_ = Clock::now() + pause;
  is_in_pairs_ = false;
}

/// Decides whether the team begins to work in pairs.
void Team::look_around(Clock::time_point now) {
  if (now < next_look_) return;
  const Clock::duration passed = now - std::exchange(last_look_, now);
  const Clock::duration delay = longest_delay();
  next_look_ = now + std::max<Clock::duration>(kLook, kLookOfAThread * size());
  const bool tells = !std::exchange(was_in_pairs_, is_in_pairs_.load());
  if (!tells || delay < passed / 2 || now < pairs_from_.load() || spin_time() > kSpinTime) return;
  was_in_pairs_ = true;
  is_in_pairs_ = true;
}

/// Returns what two neighbours together have waited for cores since the last call.
Clock::duration Team::longest_delay() {
  Clock::duration longest{0};
  for (size_t i = 0; i < seats_.size(); i += 2) {
    Clock::duration both = seats_[i].delay.more();
    if (i + 1 < seats_.size()) both += seats_[i + 1].delay.more();
    longest = std::max(longest, both);
  }
  return longest;
}

}  // namespace tokamak::cpu
