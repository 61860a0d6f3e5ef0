// Moving a value from one placement to another along one axis.
#pragma once

#include "tokamak/graph/graph.h"
#include "tokamak/graph/mesh.h"
#include "tokamak/parallel/partition.h"

namespace tokamak {

/// Moves `x`, this rank's part of a value of type `whole`, from placement `from` over `group` to
/// `to`: emits an all-reduce, reduce-scatter, slice or all-gather. Ranges are those of the whole
/// dim; if other axes cut it too, they are scaled to this rank's extent. With `blocks` > 1 a cut
/// of dim 1 is one of each of N equal blocks: a member's part is its rows of the first block,
/// then those of the second, and so on; parts that do not divide so are cut as one block. REQUIRES:
/// `to` is no pending sum unless `from` is; cuts that are gathered are even.
Value reshard(Graph& g, Value x, const CommGroup& group, const AxisPlacement& from,
              const AxisPlacement& to, const TensorType& whole, int blocks = 1);

}  // namespace tokamak
