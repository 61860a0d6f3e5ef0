// Fusing: passes that leave bytes unmoved or unsaved, by rules that ops state about themselves
// (docs/design.md).
#pragma once

#include "tokamak/graph/graph.h"
#include "tokamak/graph/state_layout.h"

namespace tokamak {

/// Where the backward reads a forward value only for products that need not run before the gradient
/// node of the same inputs (weight gradients), that node makes the value again (`emitting`) and
/// they run after it: the value is not saved. A kernel rounds it as the forward did, so no bit
/// changes.
Graph emit_on_backward(const Graph& graph, const StateLayout& layout);

/// A sum (`kIsSum`) of two values of which the later can accumulate becomes that value, added into
/// the storage of the earlier; it is then rounded once. Only where nothing reads the earlier value
/// afterwards.
Graph accumulate_sums(const Graph& graph);

/// An op and the producer of its first input become the one op that `after` names.
Graph fuse_producers(const Graph& graph, const StateLayout& layout);

}  // namespace tokamak
