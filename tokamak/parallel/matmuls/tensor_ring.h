// Async tensor parallelism: all-gather and reduce-scatter are rings of shifts beside the matmuls
// that use what arrives, or make what leaves.
#pragma once

#include <functional>
#include <vector>

#include "tokamak/graph/graph.h"
#include "tokamak/graph/mesh.h"

namespace tokamak {

/// A cut of `dim` into equal chunks, one for each member of `group`, which no other stream uses.
struct TensorRing {
  CommGroup group;
  int dim = 0;
  int64_t chunk = 0;  ///< extent of one chunk along `dim`, as this rank sees it
};

/// Calls `use` for each chunk in the order of arrival, this rank's `mine` first, while the next one
/// is on its way. Returns the chunks' values by rank.
std::vector<Value> ring_gather(Graph& g, const TensorRing& ring, Value mine,
                               const std::function<void(Value chunk)>& use);

/// Returns the sum over members of this rank's chunk. `partial` makes this rank's term of the chunk
/// from `begin` up to `end` along the ring's dim, while the sum of earlier terms is on its way.
/// Sums have the dtype of the terms and grow from the next rank round to this one.
Value ring_reduce_scatter(Graph& g, const TensorRing& ring,
                          const std::function<Value(int64_t begin, int64_t end)>& partial);

/// Returns what arrived, in order of rank instead of arrival.
std::vector<Value> by_rank(const TensorRing& ring, const std::vector<Value>& arrived);

}  // namespace tokamak
