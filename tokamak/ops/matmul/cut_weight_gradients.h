// Weight gradients in pieces, for collectives that one piece covers.
#pragma once

#include "tokamak/graph/graph.h"

namespace tokamak {

/// Cuts weight gradients of blocks that take much longer than a covered collective of the forward
/// into ranges of rows, each of which takes about as long as one. Each row is summed as before, so
/// results keep their bits. Without such collectives the graph stays as it is.
Graph cut_weight_gradients(const Graph& graph, const Rates& rates);

}  // namespace tokamak
