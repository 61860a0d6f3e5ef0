// The loop that runs a plan. It allocates, looks up and decides nothing after binding.
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

/// Seconds by phase of the items run so far, without those that exposed_comm_s counts.
using PhaseTimes = EnumArray<Phase, double, 5>;  // by Phase

class RunLoop;

/// A plan bound to memory. On a CPU (host_executor.cpp) stream 0 runs on the calling thread and
/// each other stream on its own thread; on a device (device_executor.cpp) all streams are the
/// device's and `run` returns when the work is enqueued. The plan must outlive it.
class Executor {
 public:
  /// `groups` holds a communicator for each entry of plan.groups; they must outlive it too. `world`
  /// is aborted if this rank fails while another of its streams waits for peers.
  Executor(const Plan& plan, const Memory& memory, std::span<Communicator* const> groups = {},
           World* world = nullptr);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  ~Executor();

  /// Runs one segment for one microbatch. On return (on a device: before work enqueued later
  /// starts) all its streams have ended, except tasks that run in the background or outlive their
  /// item: those have ended for an item that waits for them and after the last of plan.items.
  /// REQUIRES: where the plan has items, they are run in their order. Throws the first error of any
  /// stream; the executor cannot be used afterwards.
  void run(const ScheduleItem& item);

  /// On a device, runs each distinct kernel once and, where the plan says so, records the stretches
  /// of `items` (a step's) for `run` to replay. Either of these would wait for the device if it
  /// came later, and a collective that waits for a peer can hold that up for ever. Leaves all
  /// memory zero.
  void warm_up(std::span<const ScheduleItem> items);

  /// Returns when all work given to `run` has ended and its times and spans are added.
  void settle();

  /// Adds to `seconds` by phase as segments run (on a device, some items later or in `settle`);
  /// null stops it.
  void time_phases(PhaseTimes* seconds);

  /// Seconds that stream 0 has waited for other streams or spent in its own communication since the
  /// beginning.
  double exposed_comm_s() const;

  /// Appends to `spans` as tasks run (a clock read around each task), each stream's in order; null
  /// stops it. Spans of other streams are appended when their item ends; those of background tasks
  /// and of tasks that outlive their item, when the step ends.
  void trace(std::vector<TaskSpan>* spans);

 private:
  std::unique_ptr<RunLoop> loop_;
};

}  // namespace tokamak
