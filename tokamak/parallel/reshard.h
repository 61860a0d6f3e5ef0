// Moving a value from one placement to another along one axis.
#pragma once

#include "tokamak/graph/graph.h"
#include "tokamak/graph/mesh.h"
#include "tokamak/parallel/partition.h"

namespace tokamak {

/// Emits what makes `x`, this rank's part of a value of type `whole` that lies as `from` over
/// `group`, lie as `to`: all-reduce, reduce-scatter, slice, all-gather. Ranges are those of the
/// whole dim; where other axes cut it too they are scaled to what is here. REQUIRES: `to` is no
/// pending sum unless `from` is; cuts that are gathered are even.
Value reshard(Graph& g, Value x, const CommGroup& group, const AxisPlacement& from,
              const AxisPlacement& to, const TensorType& whole);

}  // namespace tokamak
