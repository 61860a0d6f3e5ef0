// The loops that run a bound plan: threads on a CPU, streams on a device.
#pragma once

#include "tokamak/exec/executor.h"

namespace tokamak {

/// Executor documents these functions.
class RunLoop {
 public:
  virtual ~RunLoop() = default;
  virtual void run(const ScheduleItem& item) = 0;

  virtual void warm_up(std::span<const ScheduleItem>) {}

  virtual void settle() = 0;
  virtual void time_phases(PhaseTimes* seconds) = 0;
  virtual double exposed_comm_s() const = 0;
  virtual void trace(std::vector<TaskSpan>* spans) = 0;
};

/// Runs stream 0 on the calling thread and each other stream on its own thread.
std::unique_ptr<RunLoop> make_host_loop(const Plan& plan, const Memory& memory,
                                        std::span<Communicator* const> groups, World* world);

/// Runs all streams from the calling thread, ordered by device events. REQUIRES: the backend has
/// streams.
std::unique_ptr<RunLoop> make_device_loop(const Plan& plan, const Memory& memory,
                                          std::span<Communicator* const> groups);

}  // namespace tokamak
