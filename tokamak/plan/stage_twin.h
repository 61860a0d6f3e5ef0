// The plan of one pipeline rank, from that of another whose stages do the same work, without
// planning the model again.
#pragma once

#include <vector>

#include "tokamak/pipeline/schedule.h"
#include "tokamak/plan/plan.h"

namespace tokamak {

struct TwinRequest {
  int from = 0;                  ///< pipeline rank of the plan
  int to = 0;                    ///< pipeline rank that is wanted
  int ranks_per_stage = 1;       ///< of the world: rank numbers differ by so many a pipeline rank
  std::vector<int> stages_from;  ///< of rank `from`, in model order
  std::vector<int> stages_to;    ///< of rank `to`: each does what the one in its place does
  std::vector<PipelineItem> items;  ///< what rank `to` runs: lower_schedule()
};

/// All but the tasks is that of rank `to`, so time and memory are; tasks have the labels of `plan`,
/// so it is for pricing, not for running.
/// REQUIRES: the neighbours of either rank lie on its two sides, so neither is the first or the
/// last.
Plan twin_of(const Plan& plan, const TwinRequest& request);

}  // namespace tokamak
