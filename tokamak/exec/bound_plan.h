// A plan bound to memory: every kernel prepared, every pointer known, for each choice of slots.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "tokamak/comm/communicator.h"
#include "tokamak/exec/memory.h"

namespace tokamak {

/// A task's operands.
struct BoundCall {
  std::vector<Tensor> in;
  std::vector<Tensor> out;
  std::array<KernelArgs, 2> args;  ///< for a step's first item of the segment, and for later ones
};

/// The `count`-th task, from 1, of a stream (by number) in its segment.
struct StreamPoint {
  size_t stream = 0;
  int64_t count = 0;
};

struct BoundTask {
  Kernel kernel;
  const Task* task = nullptr;
  Phase phase = Phase::kForward;
  bool is_communication = false;
  bool last_microbatch_only = false;
  size_t stream = 0;        ///< its stream's number
  int64_t count = 0;        ///< its place in its stream
  bool is_awaited = false;  ///< whether tasks of other streams wait for it
  std::vector<StreamPoint> waits;
};

struct BoundSegment {
  /// The calls of all tasks for one choice of slots.
  struct Binding {
    std::vector<int> slots;  ///< by `slot_classes`
    std::vector<const BoundCall*> calls;
  };

  bool is_background = false;
  std::vector<bool> outlives;                  ///< by stream number: whether an item's end does not
                                               ///< wait for it
  std::vector<BoundTask> tasks;                ///< in issue order
  std::vector<std::vector<size_t>> by_stream;  ///< tasks, by stream number
  std::vector<int> slot_classes;               ///< classes that operands lie in
  std::vector<Binding> bindings;               ///< sorted by slots

  /// Throws Bug if no item of the plan has this item's slots.
  const Binding& binding(const ScheduleItem& item) const;
};

/// The plan and the communicators must outlive it. It is not copyable: calls point into it.
class BoundPlan {
 public:
  BoundPlan(const Plan& plan, const Memory& memory, std::span<Communicator* const> groups);
  BoundPlan(const BoundPlan&) = delete;
  BoundPlan& operator=(const BoundPlan&) = delete;

  const std::vector<BoundSegment>& segments() const { return segments_; }

  /// Streams are numbered from 0, which is stream 0.
  size_t num_streams() const { return streams_.size(); }

 private:
  BoundSegment bind(int segment, std::span<Communicator* const> groups);
  BoundTask bind(const Task& task, std::span<Communicator* const> groups) const;
  void bind_slots(int segment, BoundSegment& bound);
  const BoundCall* call(const Task& task, const ScheduleItem& item);
  Tensor tensor(const Operand& o, const ScheduleItem& item) const;

  const Plan& plan_;
  const Memory& memory_;
  std::map<int, size_t> streams_;  // numbers
  std::deque<BoundCall> calls_;
  std::vector<BoundSegment> segments_;
};

}  // namespace tokamak
