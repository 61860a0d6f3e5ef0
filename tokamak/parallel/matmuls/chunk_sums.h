// Matmuls whose sums are scattered over tensor-parallel ranks run in chunks of tokens, so that the
// sum of a chunk is on its way while the next one is multiplied.
#pragma once

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/rank_context.h"

namespace tokamak {

/// Cuts each matmul of a layer of which nothing but a reduce-scatter over tp reads the output into
/// chunks of the blocks of tokens that the reduce-scatter has (DistributeOptions::token_blocks,
/// token_chunks). Each chunk's sum runs in the group "tp covered" and on its stream. Rows are
/// multiplied and summed as before, so results keep their bits. Microbatches of several samples,
/// matmuls in 8-bit floats and what has no blocks stay whole.
Graph chunk_sums(const Graph& graph, const RankContext& context);

}  // namespace tokamak
