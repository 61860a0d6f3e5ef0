// How a mesh spreads the parameters and messages of its stages, for estimates of its step
// (price/step/step_estimate.h).
#pragma once

#include "tokamak/price/run/slowest_place.h"
#include "tokamak/price/step/stage_costs.h"
#include "tokamak/run/mesh_options.h"

namespace tokamak {

/// Returns how a mesh spreads parameters and messages of such stages, for their slowest ranks.
price::DataSpread spread_of(const Degrees& degrees, const price::StageCosts& costs,
                            const price::Machine& machine, CausalWork work);

}  // namespace tokamak
