// Gathers of context parallelism begin in front of matmuls that do not need what they bring.
#pragma once

#include "tokamak/graph/graph.h"

namespace tokamak {

/// Moves the all-gathers of an attention that are on kContextStream, with the nodes that they read
/// from, in front of the nearest matmuls of their block that do not lead to them and take about as
/// long: the keys' and values' projections precede the queries', which runs beside their gathers,
/// and the backward gathers keys and values beside the output projection's gradient. Nodes are the
/// same ones on the same values, so results keep their bits. Gathers that nothing can hide stay
/// where they are.
Graph gather_early(const Graph& graph);

}  // namespace tokamak
