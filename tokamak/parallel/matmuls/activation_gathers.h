// Activations and their gradients that travel over tp as 8-bit codes.
#pragma once

#include <map>

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/matmuls/float8_recipe.h"

namespace tokamak {

/// Returns the nodes of a graph of one rank that gather over `tp` what nothing but matmuls of codes
/// reads, each with the format of these codes: they can gather codes under one scale. A recipe with
/// other grids than kTensor has none, and neither has a value whose rows are no multiple of 16,
/// since gathered codes are transposed without padding.
std::map<int32_t, DType> find_code_gathers(const Graph& graph, const Float8Recipe& recipe,
                                           const CommGroup& tp);

}  // namespace tokamak
