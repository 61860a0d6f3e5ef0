// Passes from graph to graph. Each returns a new graph in which every node stands before its uses;
// tests print the graphs before and after.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/graph/state_layout.h"

namespace tokamak {

/// Replaces each composite by the nodes its `expand` emits.
Graph expand_composites(const Graph& graph);

/// Drops nodes that do not write State (directly or by accumulating) and reach neither a node that
/// does nor a root.
Graph eliminate_dead(const Graph& graph);

/// Which forward values are kept for the backward; all others are recomputed from them. The modes
/// are torchtitan's.
struct RecomputePolicy {
  enum class Mode : uint8_t { kNone, kFull, kSelectiveOps, kSelectiveLayers, kMemoryBudget };

  Mode mode = Mode::kNone;
  int every_nth_block =
      1;  ///< kSelectiveLayers: blocks n-1, 2n-1, ... are recomputed whole, as torchtitan counts
  std::set<std::string, std::less<>> saved_ops;  ///< kSelectiveOps: kept besides block inputs
  std::set<std::string, std::less<>>
      halved_ops;              ///< kSelectiveOps: every second one in a block is kept (matmuls)
  double memory_budget = 0.5;  ///< kMemoryBudget: see `kept_within_budget`
  bool emit_on_backward =
      true;  ///< gradient nodes recompute what they can (fuse.h), whatever the mode
};

/// Clones forward nodes of blocks into the backward, just before their first use there. The clones
/// are the same ops on the same inputs, so gradients keep their bits.
Graph recompute(const Graph& graph, const StateLayout& layout, const RecomputePolicy& policy,
                const Rates& rates);

/// Puts backward nodes that only gradient storage needs, and the nodes that reduce them, into
/// Phase::kWeightGradient, so that a schedule can run them later.
Graph split_weight_gradients(const Graph& graph);

}  // namespace tokamak
