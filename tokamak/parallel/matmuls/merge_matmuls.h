// Merges matmuls of one input whose weights lie side by side into one matmul.
#pragma once

#include <string>
#include <vector>

#include "tokamak/graph/graph.h"

namespace tokamak {

/// Returns `graph`, of one rank, with matmuls merged (docs/design.md):
///  * summed input gradients, and the weight and bias gradients, of weights that lie side by side
///    in a bucket, as do their gradients, if one node can write the output gradients side by side
///    (SwigluGrad and AttentionGrad packed; RopeConcat elsewhere);
///  * the forward matmuls, where the op that reads them takes them packed.
/// Declares windows over the gradients in the State of `graph`. Sums are then rounded once. Appends
/// what was merged, or why not, to `notes`, each kind once.
Graph merge_matmuls(const Graph& graph, std::vector<std::string>& notes);

}  // namespace tokamak
