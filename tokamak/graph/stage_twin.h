// The plan of one pipeline rank, from that of another whose stages do the same work: what a price
// needs of it, without planning the model again.
#pragma once

#include <vector>

#include "tokamak/graph/plan.h"
#include "tokamak/graph/schedule.h"

namespace tokamak {

struct TwinRequest {
  int from = 0;             ///< pipeline rank of the plan
  int to = 0;               ///< pipeline rank that is wanted
  int ranks_per_stage = 1;  ///< of the world: rank numbers differ by so many a pipeline rank
  int num_pipeline_ranks = 1;
  std::vector<PipelineItem> items;  ///< what rank `to` runs: lower_schedule()
};

/// Tasks, segments and bytes are those of `plan`; groups and items those of rank `to`. Stages lie
/// on ranks in a loop. Slots are not dealt anew, so the plan is for pricing, not for running.
/// REQUIRES: neither rank is the first or the last, and their stages hold as many layers.
Plan twin_of(const Plan& plan, const TwinRequest& request);

}  // namespace tokamak
