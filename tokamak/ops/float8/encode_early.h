// Codes of saved values are made while the backward waits for its first gather.
#pragma once

#include "tokamak/graph/graph.h"

namespace tokamak {

/// Moves nodes of a stage's backward that transpose or make codes of what its forward has saved,
/// for weight gradients, in front of the first node that waits for a gather of tensor parallelism,
/// if no matmul runs beside that gather: as many as take about as long. Only the order of nodes
/// changes, so results keep their bits; the codes live longer.
Graph encode_early(const Graph& graph);

}  // namespace tokamak
