// Matmuls of blocks as matmuls of 8-bit codes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/parallel/matmuls/float8_recipe.h"

namespace tokamak {

/// Why the matmuls of a weight of this name and these dims stay in the compute dtype; "" where they
/// do not.
using Float8Filter = std::function<std::string(const std::string& name, const Dims& dims)>;

/// Sets `float8` of the linear ops of blocks, and of their gradients, in a graph of global shapes:
/// what merge_products() keeps apart and quantize_matmuls() replaces. Returns the number of
/// weights. Each weight that stays in the compute dtype is told with its reason in `notes`, if
/// given.
int mark_float8(Graph& graph, const Float8Filter& filter, std::vector<std::string>* notes);

/// `graph`, of one rank, with the ops that mark_float8() has marked as quantize and scaled_matmul
/// nodes. Weights of one input share their scales, as one matmul of all would have it, and so do
/// their output gradients. Weights that are gathered once a step are quantized then, else in each
/// forward and backward. Scales of whole weights are of the whole over `tp`. Throws Error where a
/// dim is no multiple of what a recipe takes.
Graph quantize_matmuls(const Graph& graph, const Float8Recipe& recipe, const CommGroup& tp);

}  // namespace tokamak
