// From a measured row to the plans that this program would run in its place, one for each pipeline
// stage.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokamak/evidence/measured_rows.h"
#include "tokamak/price/step/step_price.h"
#include "tokamak/run/planned_ranks.h"

namespace tokamak {

/// Returns the model of a row: GPT-2's family if the MLP has no gate, else Llama's.
ModelSpec spec_of_row(const MeasuredRun& run);

/// Returns what the rank of pipeline stage `pp_rank` with all other coordinates 0 would run.
/// REQUIRES: run.skipped is empty. Throws Error where no plan of ours has this shape.
RunShape shape_of_row(const MeasuredRun& run, int pp_rank);

/// Returns model FLOPs of one token, forward and backward: 6 times the parameters of matmuls, the
/// head's included, and causal attention.
double causal_flops_per_token(const MeasuredRun& run);

/// Returns the FLOPs of a step by the formula of a GPT with recompute and without a causal mask.
double hardware_flops_per_step(const MeasuredRun& run);

/// Rows with equal keys run the same plans.
std::string plan_key(const MeasuredRun& run);

/// The plans of a row: one rank of each pipeline stage.
class PlannedRow {
 public:
  /// `place` is one among the ranks of a stage, as for PlannedRanks. Throws Error as shape_of_row()
  /// does.
  explicit PlannedRow(const MeasuredRun& run, int place = 0);

  const std::vector<price::PricedRank>& ranks() const { return ranks_; }

 private:
  PlannedRanks planned_;
  std::vector<price::PricedRank> ranks_;
};

}  // namespace tokamak
