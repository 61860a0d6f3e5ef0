// Recomputation within a share of the activations (RecomputePolicy::Mode::kMemoryBudget).
#pragma once

#include <vector>

#include "tokamak/graph/graph.h"

namespace tokamak {

/// Bounds on which nodes' outputs are kept for the backward, by node.
struct KeepBounds {
  std::vector<bool> least;    ///< kept in any case, as full recomputation does
  std::vector<bool> most;     ///< may be kept, as without recomputation
  std::vector<bool> emitted;  ///< a gradient node makes the values again (`emitted_on_backward`)
};

/// Returns the nodes whose outputs are kept for the backward. Each block keeps at most the share
/// `budget` of the bytes between those of `least` (0) and of `most` (1). Values are given up one
/// after another: first the one that takes the least time per byte to compute again from what is
/// still kept, and last, of those that free enough, the one that takes the least time. This is a
/// heuristic for the knapsack that PyTorch's partitioner solves (torch/_functorch/partitioners.py,
/// activation_memory_budget). Blocks of equal nodes get equal choices.
std::vector<bool> kept_within_budget(const Graph& graph, const KeepBounds& bounds, double budget,
                                     const Rates& rates);

}  // namespace tokamak
