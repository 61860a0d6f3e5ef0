// Context parallelism starts its gathers early, beside matmuls that do not depend on them.
#pragma once

#include "tokamak/graph/graph.h"

namespace tokamak {

/// Moves the all-gathers on kContextStream that feed one attention, together with the nodes that
/// they depend on, in front of the nearest matmuls of the same block that they do not depend on and
/// that take about as long. In the forward the projections of keys and values then precede that of
/// the queries, which runs beside the gathers; in the backward keys and values are gathered beside
/// the input gradient of the output projection. Only the order of nodes changes, so results keep
/// their bits. Gathers without such a matmul stay in place.
Graph gather_early(const Graph& graph);

}  // namespace tokamak
