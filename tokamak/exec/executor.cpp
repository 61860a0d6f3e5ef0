#include "tokamak/exec/executor.h"

#include "tokamak/exec/run_loop.h"

namespace tokamak {

Executor::Executor(const Plan& plan, const Memory& memory, std::span<Communicator* const> groups,
                   World* world)
    : loop_(memory.backend().streams() == nullptr ? make_host_loop(plan, memory, groups, world)
                                                  : make_device_loop(plan, memory, groups)) {}

Executor::~Executor() = default;

void Executor::run(const ScheduleItem& item) {
  loop_->run(item);
}

void Executor::warm_up(std::span<const ScheduleItem> items) {
  loop_->warm_up(items);
}

void Executor::settle() {
  loop_->settle();
}

void Executor::time_phases(PhaseTimes* seconds) {
  loop_->time_phases(seconds);
}

double Executor::exposed_comm_s() const {
  return loop_->exposed_comm_s();
}

void Executor::trace(std::vector<TaskSpan>* spans) {
  loop_->trace(spans);
}

}  // namespace tokamak
