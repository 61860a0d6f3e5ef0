// Matmuls whose input tensor-parallel ranks gather run in chunks of tokens, so that the gather of a
// chunk is on its way while the one before is multiplied.
#pragma once

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/rank_context.h"

namespace tokamak {

/// Cuts each matmul of a layer's forward that alone reads what a gather over tp brings into chunks
/// of the blocks of tokens that the gather has (DistributeOptions::token_blocks, token_chunks).
/// Chunks are gathered in the group "tp again", which copy engines can carry, and on its stream.
/// Rows are multiplied as before, so results keep their bits; they are copied once, to lie one
/// after the other. Without gather_again the backward reads what was gathered, so it stays whole,
/// as do microbatches of several samples, matmuls in 8-bit floats and what has no blocks.
Graph chunk_gathers(const Graph& graph, const RankContext& context);

}  // namespace tokamak
