// Gathers of context parallelism, and the sum of the head's input gradient, start early, beside
// matmuls that do not depend on them.
#pragma once

#include "tokamak/graph/graph.h"

namespace tokamak {

/// Moves the all-gathers on kContextStream that feed one attention, together with the nodes that
/// they depend on, in front of the nearest matmuls of the same block that they do not depend on and
/// that take about as long. In the forward the projections of keys and values then precede that of
/// the queries, which overlaps the gathers; in the backward keys and values are gathered beside
/// the input gradient of the output projection. Moves sums of the forward on kCoveredSumStream that
/// belong to no block in front of the weight gradients that follow what they sum: the head's, which
/// then overlaps the sum of its input gradient. Only the order of nodes changes, so results keep
/// their bits. Gathers without such a matmul stay in place.
Graph gather_early(const Graph& graph, const Rates& rates);

/// Moves the all-gathers on kContextStream of a block's backward, together with the views that they
/// read, right behind what the block's last sum on kCoveredSumStream before them waits for, where
/// they read nothing that is made later: both are then under way at once, and kernels beside two
/// collectives are about as slow as beside one. Only the order of nodes changes.
Graph gather_together(const Graph& graph);

}  // namespace tokamak
