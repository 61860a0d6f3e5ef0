// Weight gradients run beside the collectives that the rest of the backward waits for.
#pragma once

#include "tokamak/graph/graph.h"

namespace tokamak {

/// Delays weight gradients of the backward until a node reads what a collective of one of the
/// streams below returns (on kContextStream, only sums count), and puts some of them in front of
/// that node that take about as long as the collective. Without such collectives the graph stays as
/// it is. Nodes are the same ones on the same values, and what adds into one place keeps its order,
/// so results keep their bits. At most the operands of a few delayed weight gradients live longer.
///
/// With `leaves_some` the last weight gradients of a stage's backward, enough for the covered
/// collectives of a stage's forward, and the reductions that follow them go into
/// Phase::kWeightGradient: the next forward runs beside them (plan/join_forwards.h).
Graph cover_collectives(const Graph& graph, bool leaves_some = false);

/// The streams of tensor-parallel collectives of the backward that matmuls can cover: gathers,
/// which include what is gathered again for weight gradients (a recomputed node), and sums.
inline constexpr int kCoveredGatherStream = 1002;
inline constexpr int kCoveredSumStream = 1003;

/// The stream of context parallelism's gathers, sums and shifts. It is apart from compute and from
/// other communication, which the ranks of cp issue in another order.
inline constexpr int kContextStream = 1000;

/// Whether a node or task is a collective of tensor parallelism on one of these streams.
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
/// takes on `stream`.
double flops_beside(const Cost& collective, int stream);

}  // namespace tokamak
