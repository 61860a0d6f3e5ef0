// The loop that runs a plan. No allocation, no look-up, no decision after binding.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "tokamak/comm/communicator.h"
#include "tokamak/core/enum_array.h"
#include "tokamak/exec/memory.h"
#include "tokamak/plan/plan.h"
#include "tokamak/plan/task_span.h"

namespace tokamak {

/// Seconds of the phases of the items run so far, without what exposed_comm_s counts.
using PhaseTimes = EnumArray<Phase, double, 5>;  // by Phase

class RunLoop;

/// A plan bound to memory. On a CPU (host_executor.cpp) stream 0 runs on the calling thread, each
/// other one on a thread of its own; on a device (device_executor.cpp) all streams are the device's
/// and `run` returns when the work is enqueued. The plan must outlive it.
class Executor {
 public:
  /// `groups`: a communicator for each entry of plan.groups, which must outlive it too. `world` is
  /// told to abort where this rank fails while another of its streams waits for peers.
  Executor(const Plan& plan, const Memory& memory, std::span<Communicator* const> groups = {},
           World* world = nullptr);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  ~Executor();

  /// Runs one segment for one microbatch; on return (on a device: for what is enqueued later) all
  /// its streams have ended, but what runs in the background or outlives its item only for an item
  /// that waits for it and after the last of plan.items.
  /// REQUIRES: where the plan has items, they are run in their order. Throws the first error of any
  /// stream; the executor is of no use after it.
  void run(const ScheduleItem& item);

  /// On a device runs each distinct kernel once and, where the plan says so, records the stretches
  /// of `items`, those of a step, for `run` to replay: later either would wait for the device,
  /// which a collective that waits for a peer can hold up for ever. Leaves all memory zero.
  void warm_up(std::span<const ScheduleItem> items);

  /// Returns when all that was given to `run` has ended and its times and spans are added.
  void settle();

  /// Adds to `seconds` by phase as segments run, on a device some items later or in `settle`; null
  /// stops it.
  void time_phases(PhaseTimes* seconds);

  /// Seconds that stream 0 has waited for other streams or spent in communication of its own, since
  /// the beginning.
  double exposed_comm_s() const;

  /// Appends to `spans` as tasks run (a clock read around each task), each stream's in order; null
  /// stops it. Spans of other streams come when their item ends, of the background and of what
  /// outlives its item when the step does.
  void trace(std::vector<TaskSpan>* spans);

 private:
  std::unique_ptr<RunLoop> loop_;
};

}  // namespace tokamak
