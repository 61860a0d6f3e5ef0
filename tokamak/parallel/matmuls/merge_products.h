// Products of one input whose weights lie side by side, as one product.
#pragma once

#include <string>
#include <vector>

#include "tokamak/graph/graph.h"

namespace tokamak {

/// `graph`, of one rank, with products merged (docs/design.md):
///  * input gradients that are summed, of weights that lie side by side in a bucket and whose own
///    gradients do, and these weight gradients: where one node can write the output gradients side
///    by side (SwigluGrad and AttentionGrad packed; RopeConcat elsewhere); those of biases too;
///  * the products themselves, where the op that reads them takes them packed.
/// Declares windows over the gradients in the State of `graph`. Sums are then rounded once. What
/// was merged, or why not, is appended to `notes`, each kind once.
Graph merge_products(const Graph& graph, std::vector<std::string>& notes);

}  // namespace tokamak
