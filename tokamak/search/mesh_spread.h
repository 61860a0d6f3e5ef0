// Where a mesh puts what its stages hold and send, for estimates of its step
// (price/step/step_estimate.h).
#pragma once

#include "tokamak/price/run/slowest_place.h"
#include "tokamak/price/step/stage_costs.h"
#include "tokamak/run/mesh_options.h"

namespace tokamak {

/// How a mesh spreads parameters and messages of such stages, as their slowest ranks have it.
price::DataSpread spread_of(const Degrees& degrees, const price::StageCosts& costs,
                            const price::Machine& machine, CausalWork work);

}  // namespace tokamak
