// What a device loop may record once and replay: tasks that the host need not come between.
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
  bool is_whole = false;  ///< only kernels of stream 0 of one phase: waits at its first task, its
                          ///< last may be awaited
};

/// The segment's tasks, each whole stretch as long as it can be, any other task by itself.
std::vector<Stretch> cut_stretches(const BoundSegment& segment);

/// The recorded stretches of a segment.
class Replays {
 public:
  /// Stretches are worth a graph, whose launch costs as much as that of a few kernels, from so many
  /// tasks on.
  static constexpr size_t kLeastTasks = 4;

  explicit Replays(const BoundSegment& segment);

  const std::vector<Stretch>& stretches() const { return stretches_; }

  using Recording = std::unique_ptr<DeviceGraph>;

  /// Of the `k`-th stretch as the item runs it, to be made where it is empty; null where the
  /// stretch is launched task by task. What differs between items (slots, accumulation, tasks of
  /// the last microbatch) has a recording each.
  Recording* find(size_t k, const BoundSegment::Binding& binding, const ScheduleItem& item);

 private:
  const BoundSegment& segment_;
  std::vector<Stretch> stretches_;
  std::vector<std::array<bool, 2>> is_worth_;  // by stretch, is_last
  std::vector<Recording> recordings_;          // by binding, is_first, is_last, stretch
};

}  // namespace tokamak
