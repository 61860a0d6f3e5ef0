// Order between streams: which tasks are known to have ended when a task begins, and the waits that
// order any two tasks which touch common bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tokamak/plan/plan.h"

namespace tokamak {

/// Bytes [begin, end) of one address space, touched by a task (an index in issue order).
struct ByteUse {
  int task = 0;
  bool writes = false;
  int64_t space = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

/// The facts about one task that decide the order between streams.
struct StreamTask {
  int stream = 0;
  When when = When::kEvery;
};

/// Vector clocks over tasks in issue order. Without `last_microbatch`, tasks of
/// When::kLastMicrobatch do not run, and other tasks learn nothing from waits for them.
class StreamClocks {
 public:
  /// The last task of each stream that is known to have ended; -1 = none.
  using Clock = std::vector<int>;

  StreamClocks(std::span<const StreamTask> tasks, bool last_microbatch);

  /// Returns what is known where the next task of `task`'s stream begins, before its own waits.
  const Clock& before(int task) const { return at_stream_[stream(task)]; }

  /// Returns what is known once `task` has ended. REQUIRES: it was issued.
  const Clock& after(int task) const { return after_[task]; }

  /// Adds the next task in issue order, which begins after `waits`.
  void issue(int task, std::span<const int> waits);

  bool has(const Clock& clock, int task) const { return clock[stream(task)] >= task; }

 private:
  size_t stream(int task) const { return streams_[task]; }

  std::span<const StreamTask> tasks_;
  bool last_microbatch_;
  std::vector<size_t> streams_;  // by task, counted from 0
  std::vector<Clock> at_stream_;
  std::vector<Clock> after_;
};

/// Returns for each task the earlier tasks of other streams that it must wait for, so that tasks
/// which touch common bytes, one of them writing, run in issue order. It leaves out waits that
/// follow from the others. `uses` are sorted by task.
std::vector<std::vector<int>> derive_waits(std::span<const StreamTask> tasks,
                                           std::span<const ByteUse> uses);

/// Returns for each task of another stream than 0 the first task of stream 0 that begins after it
/// has ended; tasks.size() if none does, and for tasks of stream 0.
std::vector<int> first_known(std::span<const StreamTask> tasks,
                             const std::vector<std::vector<int>>& waits);

/// Returns the uses of all tasks' operands and workspaces, with a space for each arena and for each
/// slot class.
std::vector<ByteUse> byte_uses(const Segment& segment);

/// Sets the waits of every task from its operands.
void set_waits(Plan& plan);

/// Does so for one segment.
void set_waits(Segment& segment);

}  // namespace tokamak
