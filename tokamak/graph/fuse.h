// Fusion passes, which avoid moving or saving bytes by rules that ops state about themselves
// (docs/design.md).
#pragma once

#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/graph/state_layout.h"

namespace tokamak {

/// Where the backward reads a forward value only for matmuls that need not run before the gradient
/// node of the same inputs (weight gradients), that node recomputes the value (`emitting`), the
/// matmuls run after it, and the value is not saved. A kernel rounds it as the forward did, so no
/// bit changes.
Graph emit_on_backward(const Graph& graph, const StateLayout& layout);

/// Returns, by node, whether `emit_on_backward` lets a gradient node make its value again.
std::vector<bool> emitted_on_backward(const Graph& graph, const StateLayout& layout);

/// Replaces a sum (`kIsSum`) of two values by the later one, accumulated into the storage of the
/// earlier; it is then rounded once. This requires that the later can accumulate and that nothing
/// reads the earlier value afterwards.
Graph accumulate_sums(const Graph& graph);

/// Returns the value that first held the storage of `v`: what it views, adds into or takes over.
Value storage_of(const Graph& graph, Value v);

/// Replaces an op and the producer of its first input by the one op that `after` gives.
Graph fuse_producers(const Graph& graph, const StateLayout& layout);

}  // namespace tokamak
