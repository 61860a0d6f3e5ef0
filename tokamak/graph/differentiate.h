// Reverse-mode differentiation, graph to graph: every op's gradient rule emits ordinary nodes.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "tokamak/graph/graph.h"

namespace tokamak {

/// Adds two cotangents of one value; the graph layer knows no ops.
using SumRule = std::function<Value(Graph&, Value, Value)>;

/// A value whose cotangent is given: the root of differentiation.
struct Seed {
  Value of;
  Value cotangent;
};

/// Returns each of `wrt`'s cotangent contributions in the order the backward makes them (empty if
/// none). They are not summed, so that each can accumulate into the gradient's storage. All other
/// cotangents are summed with `sum`. New nodes carry the block and stage of the forward node they
/// differentiate and phase kBackward.
std::vector<std::vector<Value>> differentiate(Graph& graph, std::span<const Seed> seeds,
                                              std::span<const Value> wrt, const SumRule& sum);

}  // namespace tokamak
