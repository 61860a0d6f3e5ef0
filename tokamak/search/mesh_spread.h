// Where a mesh with a pipeline puts what its stages hold and send, for closed forms of its step
// (price/step/closed_form.h).
#pragma once

#include "tokamak/price/run/slowest_place.h"
#include "tokamak/price/step/closed_form.h"
#include "tokamak/run/mesh_options.h"

namespace tokamak {

/// How a mesh spreads parameters and messages of such stages, but for where its groups lie, which
/// takes longest to find.
price::DataSpread spread_without_groups(const Degrees& degrees, const price::StageCosts& costs,
                                        const price::Machine& machine);

/// The same with its groups.
price::DataSpread spread_of(const Degrees& degrees, const price::StageCosts& costs,
                            const price::Machine& machine, CausalWork work);

/// Where the ranks of a pipeline of such stages lie: messages between nodes take longer, and groups
/// across them.
price::PipelineRanks pipeline_ranks(const Degrees& degrees, const price::StageCosts& costs,
                                    const price::Machine& machine, CausalWork work);

}  // namespace tokamak
