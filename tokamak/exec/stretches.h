// Runs of tasks that a device loop may record once and replay, as the host need not act in between.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "tokamak/exec/bound_plan.h"

namespace tokamak {

/// Consecutive tasks [begin, end) of a segment.
struct Stretch {
  size_t begin = 0;
  size_t end = 0;
  bool is_whole = false;  ///< has only kernels of stream 0 and one phase; its first task may wait,
                          ///< its last may be awaited
};

/// Cuts the segment's tasks into whole stretches, each as long as possible, and single other tasks.
std::vector<Stretch> cut_stretches(const BoundSegment& segment);

/// The recorded stretches of a segment.
class Replays {
 public:
  /// Least number of tasks for which a graph pays: its launch costs as much as that of a few
  /// kernels.
  static constexpr size_t kLeastTasks = 4;

  explicit Replays(const BoundSegment& segment);

  const std::vector<Stretch>& stretches() const { return stretches_; }

  using Recording = std::unique_ptr<DeviceGraph>;

  /// Returns the recording of the `k`-th stretch as the item runs it, which the caller makes if it
  /// is empty; null where the stretch is launched task by task. Items that differ in slots,
  /// accumulation or tasks of the last microbatch have separate recordings.
  Recording* find(size_t k, const BoundSegment::Binding& binding, const ScheduleItem& item);

 private:
  const BoundSegment& segment_;
  std::vector<Stretch> stretches_;
  std::vector<std::array<bool, 2>> is_worth_;  // by stretch, is_last
  std::vector<Recording> recordings_;          // by binding, is_first, is_last, stretch
};

}  // namespace tokamak
