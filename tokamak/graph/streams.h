// The numbers of streams (Node::stream). Stream 0 computes; the others carry communication that may
// run concurrently.
#pragma once

namespace tokamak {

/// Gathers of parameters and reductions of gradients among data-parallel ranks.
inline constexpr int kGatherStream = 1;
inline constexpr int kReduceStream = 2;

/// Messages between pipeline stages have a stream for each group: this one plus CommGroup::id.
inline constexpr int kFirstMessageStream = 3;

/// The stream of context parallelism's gathers, sums and shifts. It is apart from compute and from
/// other communication, which the ranks of cp issue in another order.
inline constexpr int kContextStream = 1000;

/// The streams of tensor-parallel collectives of the backward that matmuls can cover: gathers,
/// which include what is gathered again for weight gradients (a recomputed node), and sums.
inline constexpr int kCoveredGatherStream = 1002;
inline constexpr int kCoveredSumStream = 1003;

}  // namespace tokamak
