// Matmuls of blocks as matmuls of 8-bit codes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/matmuls/float8_recipe.h"

namespace tokamak {

/// Returns why the matmuls of a weight of this name and these dims stay in the compute dtype, or ""
/// if they are quantized.
using Float8Filter = std::function<std::string(const std::string& name, const Dims& dims)>;

/// Which matmuls of blocks are quantized.
struct Float8Layers {
  Float8Filter filter;
  int64_t bf16_at_start = 0;  ///< blocks of the model that stay in the compute dtype
  int64_t bf16_at_end = 0;
};

/// Sets `float8` of the linear ops of blocks, and of their gradients, in a graph of global shapes:
/// merge_products() keeps such ops apart and quantize_matmuls() replaces them. Returns the number
/// of weights. Appends each weight that stays in the compute dtype, with its reason, to `notes`.
int mark_float8(Graph& graph, const Float8Layers& layers, std::vector<std::string>& notes);

/// Returns the graph of one rank with quantize and scaled_matmul nodes in place of the ops that
/// mark_float8() has marked. Weights that read the same input share their scales, as one joint
/// matmul would, and so do their output gradients, unless the recipe keeps them apart. Weights that
/// are gathered once per step are quantized then; others are quantized in each forward and
/// backward. The scale of a whole weight covers all ranks of `tp`. Throws Error if a dim is not a
/// multiple of what the recipe takes.
Graph quantize_matmuls(const Graph& graph, const Float8Recipe& recipe, const CommGroup& tp);

}  // namespace tokamak
