// Moving a value from one placement to another along one axis.
#pragma once

#include "tokamak/graph/graph.h"
#include "tokamak/graph/mesh.h"
#include "tokamak/parallel/partition.h"

namespace tokamak {

/// Moves `x`, this rank's part of a value of type `whole`, from placement `from` over `group` to
/// `to`: emits an all-reduce, reduce-scatter, slice or all-gather. Ranges are those of the whole
/// dim; if other axes cut it too, they are scaled to this rank's extent. REQUIRES: `to` is no
/// pending sum unless `from` is; cuts that are gathered are even.
Value reshard(Graph& g, Value x, const CommGroup& group, const AxisPlacement& from,
              const AxisPlacement& to, const TensorType& whole);

}  // namespace tokamak
