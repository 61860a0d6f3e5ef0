// From a measured row to the plans that this program would run in its place, one for each pipeline
// stage.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokamak/price/machine/machine.h"
#include "tokamak/price/step/step_price.h"
#include "tokamak/run/planned_ranks.h"

#include "rows/measured_rows.h"

namespace tokamak {

/// Returns the model of a row: GPT-2's family if the MLP has no gate, else Llama's.
ModelSpec spec_of_row(const MeasuredRun& run);

/// Returns the software of a row: the machine's, with what the row states of its own.
price::Software software_of_row(const MeasuredRun& run, const price::Machine& machine);

/// Returns what the rank of pipeline stage `pp_rank` with all other coordinates 0 would run under
/// this software. REQUIRES: run.skipped is empty. Throws Error where no plan of ours has this
/// shape.
RunShape shape_of_row(const MeasuredRun& run, const price::Software& software, int pp_rank);

/// Returns model FLOPs of one token, forward and backward: 6 times the parameters of matmuls, the
/// head's included, and causal attention.
double causal_flops_per_token(const MeasuredRun& run);

/// Returns the FLOPs of a step by the formula of a GPT with recompute and without a causal mask.
double hardware_flops_per_step(const MeasuredRun& run);

/// Rows with equal keys run the same plans.
std::string plan_key(const MeasuredRun& run, const price::Machine& machine);

/// The plans of a row: one rank of each pipeline stage.
class PlannedRow {
 public:
  /// `place` is one among the ranks of a stage, as for PlannedRanks. Throws Error as shape_of_row()
  /// does.
  PlannedRow(const MeasuredRun& run, const price::Machine& machine, int place = 0);

  const std::vector<price::PricedRank>& ranks() const { return ranks_; }

  /// Returns what the fullest of these ranks allocates.
  int64_t peak_bytes() const { return planned_.fullest().peak_bytes(); }

 private:
  PlannedRanks planned_;
  std::vector<price::PricedRank> ranks_;
};

}  // namespace tokamak
