// Threads that run loops together, on an idle machine and on one that others use too.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

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

/// Workers that run regions together with the thread that begins these.
///
/// Each of a region's threads is a part of its work, which any thread can run: one that is ready
/// takes its neighbour's part if nobody has begun it, and the beginner takes all such parts. So
/// numbers do not depend on who is late.
///
/// Waiting threads spin for a time that is short compared with a time slice of the scheduler, and
/// sleep at once where they would keep a thread that they wait for from its core.
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
  /// The state of one thread.
  struct Seat {
    bool is_left() const { return part.load() == 1; }

    bool take() { return is_left() && part.exchange(0) == 1; }

    Word part;                   ///< 1: nobody has begun its part of the region
    std::atomic<int> core = -1;  ///< where the thread began its last part
  };

  Seat& seat(int thread) { return seats_[static_cast<size_t>(thread)]; }

  void offer(int threads);
  void enter(int thread);
  void finish_one();
  void run_if_left(int thread);
  void wait_for_workers();
  void work(int thread);

  Word unfinished_;  ///< parts of the region besides the beginner's own
  Word arrived_;     ///< threads at a barrier
  Word meetings_;    ///< barriers passed
  std::vector<Seat> seats_;
  std::vector<std::thread> workers_;
  void (*body_)(void*) = nullptr;  ///< none: workers end
  void* data_ = nullptr;
  int threads_ = 1;  ///< parts of the region
  pid_t process_;
};

}  // namespace tokamak::cpu
