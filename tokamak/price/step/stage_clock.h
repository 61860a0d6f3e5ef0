// Seconds of a pipeline's stages at the clocks of their ranks.
#pragma once

#include <vector>

#include "tokamak/price/step/closed_form.h"

namespace tokamak::price {

/// By rank, of its stages, where it lies. Power is a matter of a rank's whole step, in which it
/// updates the share `updated` of what it holds.
std::vector<StageSeconds> seconds_by_rank(const StageCosts& costs, const PipelineShape& shape,
                                          const PipelineRanks& ranks, const Machine& machine,
                                          double updated);

}  // namespace tokamak::price
