// A pipeline's step estimated by the event loop of its price (price/step/stream_loop.h). Here each
// Work is a whole item of the schedule or, if gathers and reductions run beside it, a layer. It
// takes what a stage's modules cost (price/step/stage_costs.h), so no plan is made.
#pragma once

#include "tokamak/price/step/stage_costs.h"

namespace tokamak::price {

/// `costs` are of stages that split their backwards as the schedule does. REQUIRES: add_items() was
/// called.
double estimate_pipeline(const StageCosts& costs, const PipelineShape& shape,
                         const DataSpread& spread, const Machine& machine);

/// Estimates only the items, without what data parallelism does beside them.
double estimate_items(const StageCosts& costs, const PipelineShape& shape, const DataSpread& spread,
                      const Machine& machine);

/// Returns a lower bound of what data parallelism adds to estimate_items().
double least_of_ends(const StageCosts& costs, const PipelineShape& shape, const DataSpread& spread,
                     const Machine& machine);

}  // namespace tokamak::price
