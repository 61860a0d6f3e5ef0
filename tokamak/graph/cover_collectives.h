// Weight gradients overlap the collectives that the rest of the backward waits for.
#pragma once

#include "tokamak/graph/graph.h"
#include "tokamak/graph/streams.h"

namespace tokamak {

/// Delays weight gradients of the backward until a node reads what a collective of a covered stream
/// (streams.h; on kContextStream only sums count) returns, and puts some of them in front of that
/// node that take about as long as the collective. Without such collectives the graph stays as it
/// is. Nodes are the same ones on the same values, and what adds into one place keeps its order, so
/// results keep their bits. At most the operands of a few delayed weight gradients live longer.
///
/// With `leaves_some` the last weight gradients of a stage's backward, enough for the covered
/// collectives of a stage's forward, and the reductions that follow them go into
/// Phase::kWeightGradient: the next forward overlaps them (plan/join_forwards.h).
Graph cover_collectives(const Graph& graph, const Rates& rates, bool leaves_some);

/// Whether a node or task is a collective of tensor parallelism on a covered stream.
inline bool is_on_covered_stream(const OpRules& rules, int stream) {
  return rules.is_communication && (stream == kCoveredGatherStream || stream == kCoveredSumStream);
}

/// Whether a node or task is one of a block's collectives in the forward that weight gradients can
/// cover.
inline bool is_covered_in_forward(const OpRules& rules, const Label& label, int stream) {
  return label.phase == Phase::kForward && label.block >= 0 && is_on_covered_stream(rules, stream);
}

bool is_covered_in_forward(const Node& node);

/// This share of a collective may stay exposed; another weight gradient covers the next one
/// instead.
inline constexpr double kMostBare = 0.3;

/// Returns roughly how many floating-point operations of matmuls take as long as the collective
/// takes on `stream`. The ranks of kContextStream may lie on several hosts.
double flops_beside(const Cost& collective, int stream, const Rates& rates);

}  // namespace tokamak
