// A pipeline's step estimated by the event loop of its price (price/step/stream_loop.h), whose
// works are here whole items of the schedule and, where gathers and reductions run beside them,
// layers. They take what a stage's modules cost (price/step/stage_costs.h), so no plan is made.
#pragma once

#include "tokamak/price/step/stage_costs.h"

namespace tokamak::price {

/// Costs are of stages that split their backwards as the schedule does. REQUIRES: add_items().
double estimate_pipeline(const StageCosts& costs, const PipelineShape& shape,
                         const DataSpread& spread, const Machine& machine);

/// The same of the items alone, whatever data parallelism does beside them.
double estimate_items(const StageCosts& costs, const PipelineShape& shape, const DataSpread& spread,
                      const Machine& machine);

/// What data parallelism adds to that at least.
double least_of_ends(const StageCosts& costs, const PipelineShape& shape, const DataSpread& spread,
                     const Machine& machine);

}  // namespace tokamak::price
