// Weights that are gathered once per step are gathered one module after another, to save memory.
#pragma once

#include "tokamak/graph/graph.h"

namespace tokamak {

/// Moves nodes of Phase::kUnshard to the first node of another phase that reads one of the same
/// module: its gathers, and the casts and codes that are made of what they bring. A module's
/// weights are then gathered when those of the module before have been read, so that they lie in
/// memory for one module at a time, and nothing runs beside the gathers. Only the order of nodes
/// changes, so results keep their bits. Nodes that write State stay in place, but for gathers into
/// a kept copy: all gathers keep their order, which is that of other ranks.
Graph gather_late(const Graph& graph);

}  // namespace tokamak
