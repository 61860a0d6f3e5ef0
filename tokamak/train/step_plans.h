// Which plan a step runs.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tokamak/exec/executor.h"
#include "tokamak/run/planned_run.h"

namespace tokamak {

/// The plans of a run's steps, bound to its memory: PlannedRun::plan(), and plan_without_scales()
/// for steps before which an operand has no delayed scale. The choice changes no bit.
class StepPlans {
 public:
  /// A plan bound to memory.
  struct Bound {
    const Plan& plan;
    Executor executor;
    std::vector<bool> writes_saved;  ///< by segment: what checkpoints hold
  };

  /// All must outlive it. `world` has the ranks that choose together; it is null for one alone.
  StepPlans(const PlannedRun& run, const Memory& memory, const StateAccess& access,
            std::span<Communicator* const> groups, World* world);

  /// See Executor::warm_up().
  void warm_up(int num_microbatches);

  /// Returns the plan of the next step. Until all operands have scales this is collective, and a
  /// device first ends the steps that it was given.
  Bound& choose();

  /// Says that State was written from outside.
  void forget() { has_scales_ = false; }

  void settle();
  void time_phases(PhaseTimes* seconds);
  double exposed_comm_s() const;

 private:
  bool finds_scales() const;

  const PlannedRun& run_;
  const StateAccess& access_;
  World* world_;
  std::unique_ptr<Bound> steady_;
  std::unique_ptr<Bound> without_scales_;  // null where the run has no such plan
  bool has_scales_ = false;
};

}  // namespace tokamak
