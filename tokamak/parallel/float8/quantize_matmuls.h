// Matmuls of blocks and of the head as quantized matmuls.
#pragma once

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/float8/float8_recipe.h"
#include "tokamak/parallel/low_precision.h"

namespace tokamak {

/// Returns the graph of one rank with quantize and scaled_matmul nodes in place of the ops that
/// mark_float8() has marked. Weights that read the same input share their scales, as one joint
/// matmul would, and so do their output gradients, unless the recipe keeps them apart. Weights that
/// stay for a whole step are quantized once a step, and those that travel quantized by their owners
/// (quantized_gathers.h); others are quantized in each forward and backward. Composites are
/// expanded first: each chunk of the head has scales of its own tokens, and all chunks multiply the
/// same quantized values of its weight. The scale of a whole weight covers all ranks that have
/// parts of it, and that of a value that travels over tp quantized (quantized_collectives.h) covers
/// the ranks of tp. Delayed scales come from a table (float8_table.h), which a graph with an update
/// renews at its end. With `has_scales`, which only such a graph may have, each row of the table
/// has a scale, so that none is computed from the values' maxima. Throws Error if a dim is not a
/// multiple of what the recipe takes.
Graph quantize_matmuls(const Graph& graph, const Float8Recipe& recipe, const WeightGroups& groups,
                       bool has_scales = false);

}  // namespace tokamak
