// Where a mesh with a pipeline puts what its stages hold and send, for closed forms of its step
// (price/closed_form.h).
#pragma once

#include "tokamak/price/closed_form.h"
#include "tokamak/train/mesh_options.h"
#include "tokamak/train/slowest_place.h"

namespace tokamak {

/// How a mesh spreads parameters and messages of such stages.
price::DataSpread spread_of(const Degrees& degrees, const price::StageCosts& costs,
                            const price::Machine& machine, CausalWork work);

/// Where the ranks of a pipeline of such stages lie: messages between nodes take longer, and groups
/// across them.
price::PipelineRanks pipeline_ranks(const Degrees& degrees, const price::StageCosts& costs,
                                    const price::Machine& machine, CausalWork work);

}  // namespace tokamak
