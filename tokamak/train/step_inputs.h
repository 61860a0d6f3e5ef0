// What the host writes into a rank's State before a step and before each microbatch.
#pragma once

#include <cstdint>

#include "tokamak/data/loader.h"
#include "tokamak/exec/executor.h"
#include "tokamak/run/planned_run.h"
#include "tokamak/train/mesh_batch.h"

namespace tokamak {

/// Returns which tokens of sequences of `seq_len` the run's rank holds.
SequenceShare share_of(const PlannedRun& run, int64_t seq_len);

class StepInputs {
 public:
  /// `state` may name State that this rank does not hold, which is left out.
  StepInputs(const StateAccess& access, const StepState& state, const SequenceShare& share)
      : access_(access), state_(state), share_(share) {}

  /// Writes the learning rate of step `step`, whose number random bits depend on, and the bias
  /// corrections of update `update`; both count from 1.
  void write_scalars(double lr, int64_t step, int64_t update,
                     const OptimizerOptions& optimizer) const;

  /// Writes the gradient norm above which the step updates nothing, where the graph has a limit.
  void write_norm_limit(double limit) const;

  /// Writes the factor by which the sum over tokens becomes the loss of a step.
  void write_loss_scale(float scale) const;

  /// Writes this rank's share of the batch, whose first row is the `first_row`-th of the run.
  void write_batch(const Batch& batch, int64_t first_row) const;

 private:
  bool has(StateId id) const { return id.valid() && !access_.states()[id].is_absent; }

  StateAccess access_;
  StepState state_;
  SequenceShare share_;
};

}  // namespace tokamak
