// Pipeline stages: which nodes this rank runs, and sends and receives where values cross.
#pragma once

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/buckets/buckets.h"

namespace tokamak {

/// Drops nodes of stages that other ranks run (every rank keeps update nodes). Puts a `send` after
/// each value that another rank's stage reads and a `recv` before each value that this rank reads
/// from another. Each pair of ranks and direction has one group of two.
Graph keep_stages(const Graph& graph, const RankContext& context);

}  // namespace tokamak
