// A thread of each rank that ends the process where it gets nowhere: in MPI_Init, in a kernel that
// never returns, in a disk that does not answer. Waits for peers have a limit of their own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "tokamak/comm/communicator.h"
#include "tokamak/comm/flight.h"
#include "tokamak/core/file_call.h"

namespace tokamak {

struct SilenceLimits {
  std::chrono::duration<double> start{300};     ///< until the third step is done
  std::chrono::duration<double> progress{100};  ///< without a call to a file, and most of a step
  std::chrono::duration<double> file_call{60};  ///< of one call to a file system, on any thread
};

/// How long a rank may go without a sign of progress.
class SilenceRule {
 public:
  using Seconds = std::chrono::duration<double>;

  /// Minimum timeout: a step that takes under a tenth of it may once be ten times slower.
  static constexpr Seconds kLeast{8};
  static constexpr double kTimesLongest = 10.0;
  static constexpr double kTimesLongestAtLeast = 3.0;

  /// Describes a rank as its watcher sees it at one moment.
  struct Sample {
    RankActivity activity{};
    uint64_t ticks = 0;
    int64_t step = 0;
    uint64_t num_file_calls = 0;  ///< begun and ended, by all threads
    bool is_in_collective = false;
    UnreturnedCall file_call;  ///< the oldest of all threads
  };

  void set_limits(SilenceLimits limits) { limits_ = limits; }

  /// Takes a sample `passed` after the one before. Returns why the rank must be ended, or "": it
  /// has shown no progress for longer than the limit of what it does. While it computes, that is
  /// ten times the longest silence of earlier steps, at least kLeast and at most limits.progress,
  /// but never less than three times that silence. File work makes progress when a call to a file
  /// returns.
  std::string look(const Sample& sample, Seconds passed);

 private:
  Seconds limit() const;
  bool is_call_stuck(const UnreturnedCall& call, Seconds passed);

  SilenceLimits limits_;
  Sample last_;
  Seconds silence_{0};
  Seconds longest_{0};  ///< while computing
  Seconds in_call_{0};  ///< since the oldest call to a file system was first seen
  int64_t first_step_ = -1;
};

/// Looks after this process while it lives. Only one exists at a time.
class Watchdog {
 public:
  /// Until watch() is called the process is held to be in MPI_Init, with `limits.start`.
  explicit Watchdog(SilenceLimits limits);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

  /// Looks at the flight record of `world` from here on, until leave().
  void watch(World& world);

  void set_limits(SilenceLimits limits);

  /// Must be called before the world is destroyed, whose end has the limit of a start.
  void leave();

 private:
  void run();
  SilenceRule::Sample sample() const;
  [[noreturn]] void end(const std::string& why) const;

  std::mutex mutex_;
  std::condition_variable wake_;
  World* world_ = nullptr;
  bool has_left_ = false;
  bool is_ending_ = false;
  SilenceRule rule_;
  std::thread thread_;
};

}  // namespace tokamak
