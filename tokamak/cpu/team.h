// Threads that run loops together, on an idle machine and on one that others use too.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include <sched.h>
#include <sys/types.h>

namespace tokamak::cpu {

class Team;

/// The place of a thread in the region that it runs.
struct Place {
  Team* team = nullptr;
  int thread = 0;
  int threads = 1;
};

extern constinit thread_local Place place;

/// A number that threads wait for, and sleep on.
class alignas(128) Word {
 public:
  uint32_t load() const { return value_.load(); }

  void store(uint32_t value) { value_.store(value); }

  uint32_t exchange(uint32_t value) { return value_.exchange(value); }

  /// Returns the value after the addition.
  uint32_t add(uint32_t more) { return value_.fetch_add(more) + more; }

  /// Sleeps until it is woken if the value is still `old`; may return earlier.
  void sleep_while(uint32_t old);

  void wake();

 private:
  std::atomic<uint32_t> value_ = 0;
  std::atomic<uint32_t> sleepers_ = 0;
};

/// How long a thread has been ready to run without a core.
class RunDelay {
 public:
  RunDelay() = default;
  ~RunDelay();
  RunDelay(const RunDelay&) = delete;
  RunDelay& operator=(const RunDelay&) = delete;

  void watch_this_thread();

  /// Returns the time since the last call, zero where the kernel does not tell.
  std::chrono::nanoseconds more();

 private:
  std::atomic<int> file_ = -1;
  int64_t last_ = 0;
};

/// Workers that run regions together with the thread that begins these.
///
/// Each of a region's threads is a part of its work, which any thread can run: one that is ready
/// takes its neighbour's part if nobody has begun it, and the beginner takes all such parts. So
/// numbers do not depend on who is late.
///
/// Waiting threads spin for a time that is short beside a time slice of the scheduler, and sleep at
/// once where they would keep a thread that they wait for from its core.
///
/// Where other programs want the cores too, all threads wait whenever one of them loses its core.
/// The team works in pairs then: a thread runs its odd neighbour's part after its own. The
/// neighbour stays on the same core, ready to run, and yields, so that the scheduler leaves both
/// their share of the machine on this core.
class Team {
 public:
  explicit Team(int size);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(seats_.size()); }

  /// Calls body(data) once for each of `threads` threads, at most size().
  void run(void (*body)(void*), void* data, int threads);

  /// Waits until all threads of the region have called this.
  void meet();

 private:
  using Clock = std::chrono::steady_clock;

  /// The state of one thread.
  struct Seat {
    bool is_left() const { return part.load() == 1; }

    bool take() { return is_left() && part.exchange(0) == 1; }

    Word part;                        ///< 1: nobody has begun its part of the region
    std::atomic<uint32_t> moves = 0;  ///< of the thread into and out of parts; odd: it is at work
    std::atomic<int> core = -1;       ///< where the thread began its last part
    RunDelay delay;
    Clock::time_point next_try;       ///< whether another core has time for the thread
    Clock::duration time_in_pairs{};  ///< between two tries
    bool is_apart = false;            ///< it keeps away from its neighbour's core
  };

  class Rest {
   public:
    bool is_long(const Seat& seat, Clock::time_point now);

   private:
    uint32_t moves_ = 0;
    Clock::time_point begin_ = Clock::now();
  };

  Seat& seat(int thread) { return seats_[static_cast<size_t>(thread)]; }

  static void begin(Seat& own);
  void offer(int threads);
  void enter(int thread);
  void finish_one();
  void run_if_left(int thread);
  void wait_for_workers();
  void work(int thread);

  bool can_stand_by(const Seat& own) const {
    return is_in_pairs_ && !(own.is_left() && has_barrier_);
  }

  bool finds_core(const Seat& own, const Seat& neighbour) const;
  void stand_by(Seat& own, const Seat& neighbour);
  void leave_pairs(Clock::duration pause);
  void look_around(Clock::time_point now);
  Clock::duration longest_delay();

  Word unfinished_;  ///< parts of the region besides the beginner's own
  Word arrived_;     ///< threads at a barrier
  Word meetings_;    ///< barriers passed
  std::vector<Seat> seats_;
  std::vector<std::thread> workers_;
  void (*body_)(void*) = nullptr;  ///< none: workers end
  void* data_ = nullptr;
  Clock::time_point last_look_ = Clock::now();
  Clock::time_point next_look_ = last_look_;
  std::atomic<Clock::time_point> pairs_from_ = last_look_;
  cpu_set_t cores_{};  ///< of the threads before they stand by
  int threads_ = 1;    ///< parts of the region
  int regions_ = 0;
  pid_t process_;
  std::atomic<bool> has_barrier_ = false;  ///< all parts of the region must run at the same time
  std::atomic<bool> is_in_pairs_ = false;
  bool was_in_pairs_ = true;  ///< since the last look; at the start delays tell nothing either
};

}  // namespace tokamak::cpu
