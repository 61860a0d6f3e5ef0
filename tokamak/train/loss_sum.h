// The loss of the weights as they are, summed over batches by the plan of validation.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tokamak/data/loader.h"
#include "tokamak/exec/executor.h"
#include "tokamak/run/planned_run.h"
#include "tokamak/train/step_inputs.h"

namespace tokamak {

class LossSum {
 public:
  /// `batches` of add() have rows of `seq_len` tokens. `run` and `executor` must outlive it.
  LossSum(const PlannedRun& run, const StateAccess& access, Executor& executor, int64_t seq_len);

  /// Begins a new sum.
  void restart();

  /// Adds this rank's batch. Collective: ranks add their batches together.
  void add(const Batch& batch);

  /// Returns the sum of -ln p over the labels of all ranks' batches.
  double total() const { return total_; }

  /// Returns the number of labels of this rank's batches.
  int64_t labels() const { return labels_; }

 private:
  const PlannedRun& run_;
  StateAccess access_;
  Executor& executor_;
  StepInputs inputs_;
  std::vector<ScheduleItem> schedule_;
  double total_ = 0.0;
  int64_t labels_ = 0;
};

/// Sums a count over the ranks that read different data. Collective.
int64_t sum_over_rows(World& world, const Mesh& mesh, int64_t mine);

/// Does the same, or returns nothing on all ranks where any of them has no count yet.
std::optional<int64_t> sum_over_rows(World& world, const Mesh& mesh, std::optional<int64_t> mine);

}  // namespace tokamak
