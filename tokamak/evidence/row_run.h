// From a measured row to the plans that this program would run in its place, one of each pipeline
// stage.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokamak/evidence/measured_rows.h"
#include "tokamak/price/step/step_price.h"
#include "tokamak/run/planned_ranks.h"

namespace tokamak {

/// The model of a row: GPT-2's family where the MLP has no gate, else Llama's.
ModelSpec spec_of_row(const MeasuredRow& row);

/// What the rank of pipeline stage `pp_rank` with all other coordinates 0 would run.
/// REQUIRES: row.skipped is empty. Throws Error where no plan of ours has this shape.
RunShape shape_of_row(const MeasuredRow& row, int pp_rank);

/// How another trainer differs from this program. A published row is priced with these differences;
/// every other run keeps the defaults of RunShape.
struct Imitation {
  bool tied = false;             ///< embedding and head are one weight
  bool merge_products = true;    ///< one weight for q, k and v, and one for gate and up
  bool pads_logits = true;       ///< of an odd vocabulary
  bool whole_sequences = false;  ///< each tp rank holds them between blocks
  bool keep_copies = false;      ///< updates write bf16 copies, rather than a pass after them
};

/// Decides by the row's software; `whole_sequences` also depends on its recompute column.
Imitation imitation_of(const MeasuredRow& row);

/// Name of the machine file of row.gpu; empty if there is none.
std::string machine_of_row(const MeasuredRow& row);

/// What the products of its blocks compute in.
price::Precision precision_of_row(const MeasuredRow& row);

/// Rows with equal keys run the same plans.
std::string plan_key(const MeasuredRow& row);

/// The plans of a row: one rank of each pipeline stage.
class PlannedRow {
 public:
  /// `place` among the ranks of a stage, as PlannedRanks'. Throws Error: see shape_of_row().
  explicit PlannedRow(const MeasuredRow& row, int place = 0);

  const std::vector<price::PricedRank>& ranks() const { return ranks_; }

 private:
  PlannedRanks planned_;
  std::vector<price::PricedRank> ranks_;
};

}  // namespace tokamak
