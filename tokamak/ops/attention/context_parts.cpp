#include "tokamak/ops/attention/context_parts.h"

#include "tokamak/ops/elementwise/cast.h"
#include "tokamak/ops/layout/pack.h"

namespace tokamak {

std::vector<int> Context::order() const {
  std::vector<int> order(static_cast<size_t>(group.size) * chunks(0).size());
  int next = 0;
  for (int rank = 0; rank < group.size; ++rank) {
    for (const int chunk : chunks(rank)) order[chunk] = next++;
  }
  return order;
}

Value slice(Graph& g, Value x, int dim, int64_t begin, int64_t end) {
  if (begin == 0 && end == g.type(x).dims[dim]) return x;
  return g.apply(SliceDim{.dim = dim, .begin = begin, .end = end}, {x});
}

Value concat(Graph& g, int dim, std::vector<Value> parts) {
  if (parts.size() == 1) return parts[0];
  return g.apply(ConcatDim{.dim = dim}, std::move(parts));
}

Value cast(Graph& g, Value x, DType dtype) {
  return g.type(x).dtype == dtype ? x : g.apply(Cast{.dtype = dtype}, {x});
}

}  // namespace tokamak
