// The functions of OpenMP's runtime that GCC makes of our loops and that oneDNN calls, in place of
// libgomp's, whose threads spin for a number of turns before they sleep: no number suits both an
// idle machine and a busy one. Here they spin for a time that is short beside a time slice of the
// scheduler, and sleep at once where they would keep a thread that they wait for from its core.
//
// OMP_NUM_THREADS and OMP_WAIT_POLICY are read. Nested regions have one thread. Other constructs
// than static loops and barriers need more functions, and libgomp's would not know these threads:
// openmp_test.cpp and tools/check_symbols.py look for them.
#include <atomic>
#include <charconv>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

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

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view{} : value;
}

Clock::duration spin_time() {
  static const Clock::duration kTime = [] {
    const std::string_view policy = variable("OMP_WAIT_POLICY");
    if (policy == "active" || policy == "ACTIVE") return Clock::duration(std::chrono::hours(1));
    if (policy == "passive" || policy == "PASSIVE") return Clock::duration::zero();
    return Clock::duration(kSpinTime);
  }();
  return kTime;
}

int threads_at_start() {
  static const int kThreads = [] {
    const std::string_view text = variable("OMP_NUM_THREADS");
    int n = 0;
    std::from_chars(text.data(), text.data() + text.size(), n);
    cpu_set_t cores;
    if (n <= 0 && ::sched_getaffinity(0, sizeof cores, &cores) == 0) n = CPU_COUNT(&cores);
    return n > 0 ? n : 1;
  }();
  return kThreads;
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

/// A number that threads wait for, and sleep on.
class alignas(128) Word {
 public:
  uint32_t load() const { return value_.load(); }

  void store(uint32_t value) { value_.store(value); }

  /// Returns the value after the addition.
  uint32_t add(uint32_t more) { return value_.fetch_add(more) + more; }

  /// Sleeps until it is woken if the value is still `old`; may return earlier.
  void sleep_while(uint32_t old) {
    sleepers_.fetch_add(1);
    ::syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
    sleepers_.fetch_sub(1);
  }

  void wake() {
    if (sleepers_.load() == 0) return;
    ::syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }

 private:
  std::atomic<uint32_t> value_ = 0;
  std::atomic<uint32_t> sleepers_ = 0;
};

class Team;

/// The place of a thread in the region that it runs.
struct Place {
  Team* team = nullptr;
  int thread = 0;
  int threads = 1;
};

thread_local Place place;
thread_local int max_threads = 0;  // 0: as many as at the start

int threads_of_next() {
  return max_threads > 0 ? max_threads : threads_at_start();
}

/// The workers that run regions together with the thread that begins these.
class Team {
 public:
  explicit Team(int size) : cores_(static_cast<size_t>(size)) {
    for (int i = 1; i < size; ++i) workers_.emplace_back([this, i] { work(i); });
  }

  ~Team() {
    if (::getpid() != process_) {  // a fork has no workers
      for (std::thread& worker : workers_) worker.detach();
      return;
    }
    body_ = nullptr;
    rounds_.add(1);
    rounds_.wake();
    for (std::thread& worker : workers_) worker.join();
  }

  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(cores_.size()); }

  void run(void (*body)(void*), void* data, int threads) {
    body_ = body;
    data_ = data;
    threads_ = threads;
    at_work_.store(static_cast<uint32_t>(workers_.size()));
    cores_[0].id = ::sched_getcpu();
    rounds_.add(1);
    rounds_.wake();
    enter(0);

    const auto is_done = [&] { return at_work_.load() == 0; };
    const auto is_in_the_way = [&] {
      const int here = ::sched_getcpu();
      for (size_t i = 1; i < cores_.size(); ++i) {
        if (cores_[i].id == here) return true;
      }
      return false;
    };
    if (spin(is_done, is_in_the_way)) return;
    for (uint32_t left = at_work_.load(); left != 0; left = at_work_.load())
      at_work_.sleep_while(left);
  }

  void meet() {
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

 private:
  struct alignas(128) Core {
    std::atomic<int> id = -1;  ///< where a thread began its part of the last region
  };

  void enter(int thread) {
    const Place before = std::exchange(place, {this, thread, threads_});
    body_(data_);
    place = before;
  }

  void work(int thread) {
    for (uint32_t round = 0;; ++round) {
      const auto has_begun = [&] { return rounds_.load() != round; };
      const auto is_in_the_way = [&] { return cores_[0].id == ::sched_getcpu(); };
      if (!spin(has_begun, is_in_the_way)) {
        while (!has_begun()) rounds_.sleep_while(round);
      }
      if (body_ == nullptr) return;
      if (thread < threads_) {
        cores_[static_cast<size_t>(thread)].id = ::sched_getcpu();
        enter(thread);
      }
      if (at_work_.add(UINT32_MAX) == 0) at_work_.wake();
    }
  }

  void (*body_)(void*) = nullptr;  ///< none: workers end
  void* data_ = nullptr;
  int threads_ = 1;  ///< at most size(); others pass over the region
  Word rounds_;      ///< regions begun
  Word at_work_;     ///< workers that have not ended the last one
  Word arrived_;     ///< threads at a barrier
  Word meetings_;    ///< barriers passed
  pid_t process_ = ::getpid();
  std::vector<Core> cores_;
  std::vector<std::thread> workers_;
};

thread_local std::unique_ptr<Team> own_team;

void run_region(void (*body)(void*), void* data, int threads) {
  if (place.team != nullptr) {
    const Place before = std::exchange(place, {place.team, 0, 1});
    body(data);
    place = before;
  } else if (threads <= 1) {
    body(data);
  } else {
    if (own_team == nullptr || own_team->size() < threads)
      own_team = std::make_unique<Team>(threads);
    own_team->run(body, data, threads);
  }
}

}  // namespace
}  // namespace tokamak::cpu

extern "C" {
// NOLINTBEGIN(readability-identifier-naming): the names are libgomp's

void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned /*flags*/) {
  using namespace tokamak::cpu;  // NOLINT(google-build-using-namespace): C's functions lie outside
  run_region(body, data, threads == 0 ? threads_of_next() : static_cast<int>(threads));
}

void GOMP_barrier() {
  const tokamak::cpu::Place& here = tokamak::cpu::place;
  if (here.threads > 1) here.team->meet();
}

int omp_get_max_threads() {
  return tokamak::cpu::threads_of_next();
}

int omp_get_num_threads() {
  return tokamak::cpu::place.threads;
}

int omp_get_thread_num() {
  return tokamak::cpu::place.thread;
}

int omp_in_parallel() {
  return tokamak::cpu::place.team != nullptr ? 1 : 0;
}

void omp_set_num_threads(int threads) {
  tokamak::cpu::max_threads = threads;
}

// NOLINTEND(readability-identifier-naming)
}  // extern "C"
