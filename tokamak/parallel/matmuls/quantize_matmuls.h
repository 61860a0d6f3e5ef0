// Matmuls of blocks and of the head as matmuls of 8-bit codes.
#pragma once

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/matmuls/float8_recipe.h"

namespace tokamak {

/// Returns the graph of one rank with quantize and scaled_matmul nodes in place of the ops that
/// mark_float8() has marked. Weights that read the same input share their scales, as one joint
/// matmul would, and so do their output gradients, unless the recipe keeps them apart. Weights that
/// are gathered once per step are quantized then; others are quantized in each forward and
/// backward. Composites are expanded first: each chunk of the head has scales of its own tokens,
/// and all chunks multiply the same codes of its weight. The scale of a whole weight covers all
/// ranks of `tp`. Throws Error if a dim is not a multiple of what the recipe takes.
Graph quantize_matmuls(const Graph& graph, const Float8Recipe& recipe, const CommGroup& tp);

}  // namespace tokamak
