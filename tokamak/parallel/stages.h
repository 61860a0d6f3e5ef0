// Pipeline stages: which nodes this rank runs, and sends and receives where values cross.
#pragma once

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/buckets/buckets.h"

namespace tokamak {

/// Drops nodes of stages that other ranks run (update nodes are everybody's) and puts a `send`
/// after what another rank's stage reads and a `recv` before what this rank reads of another's.
/// One group of two for each pair of ranks and direction.
Graph keep_stages(const Graph& graph, const RankContext& context);

}  // namespace tokamak
