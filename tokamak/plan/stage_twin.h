// The plan of one pipeline rank, made from that of another whose stages do the same work, without
// planning the model again.
#pragma once

#include <vector>

#include "tokamak/pipeline/schedule.h"
#include "tokamak/plan/plan.h"

namespace tokamak {

struct TwinRequest {
  int from = 0;                  ///< pipeline rank of the plan
  int to = 0;                    ///< pipeline rank that is wanted
  int ranks_per_stage = 1;       ///< step of world rank numbers from one pipeline rank to the next
  std::vector<int> stages_from;  ///< of rank `from`, in model order
  std::vector<int> stages_to;    ///< of rank `to`; each does the work of its entry in stages_from
  std::vector<PipelineItem> items;  ///< what rank `to` runs: lower_schedule()
  Rates rates;                      ///< for which `plan` was made
};

/// Returns a plan whose time and memory are those of rank `to`. Its tasks keep the labels of
/// `plan`, so it is for pricing, not for running.
/// REQUIRES: both ranks have a neighbour on either side, so neither is the first or the last.
Plan twin_of(const Plan& plan, const TwinRequest& request);

}  // namespace tokamak
