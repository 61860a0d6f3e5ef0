// Whether a rank's process still runs at all; its own watchdog checks that it makes progress.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <sys/types.h>

#include "tokamak/comm/flight_file.h"

namespace tokamak::launch {

/// Returns 128 + N once signal N has begun to end the process: it runs none of its code any more,
/// but what it holds (gigabytes that are pinned, a GPU's memory) may take seconds to free, and only
/// then can it be waited for. Returns nothing before, and for a process that ends by itself.
std::optional<int> death_by_signal(pid_t process);

class Liveness {
 public:
  /// `process` is that of rank `rank`, whose flight record will be in `folder`.
  Liveness(pid_t process, std::filesystem::path folder, int rank);

  /// Looks once, at regular intervals. Returns why the rank must be ended, or "": because it was
  /// stopped (SIGSTOP), or its watchdog has not counted, for kPatience. Time in which the caller
  /// was stopped itself, or the rank is in a debugger, does not count.
  std::string look();

  /// Returns the last step that the rank has done, or -1 where it has no record.
  int64_t step();

 private:
  FlightPage* page();

  pid_t process_;
  std::filesystem::path folder_;
  int rank_;
  std::optional<FlightFile> file_;
  int64_t last_look_ns_ = 0;
  int64_t stopped_ns_ = 0;
  int64_t silent_ns_ = 0;
  uint64_t last_beats_ = 0;
};

}  // namespace tokamak::launch
