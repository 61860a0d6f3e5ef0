#include "tokamak/ops/attention/context_parts.h"

#include <algorithm>

#include "tokamak/ops/elementwise/cast.h"
#include "tokamak/ops/layout/pack.h"
#include "tokamak/ops/layout/reshape.h"
#include "tokamak/ops/layout/slice_rows.h"

namespace tokamak {

std::vector<int> Context::order() const {
  std::vector<int> order(static_cast<size_t>(group.size) * chunks(0).size());
  int next = 0;
  for (int rank = 0; rank < group.size; ++rank) {
    for (const int chunk : chunks(rank)) order[chunk] = next++;
  }
  return order;
}

Value slice(Graph& g, const Context& c, Value x, int dim, int64_t begin, int64_t end) {
  Dims dims = g.type(x).dims;
  if (begin == 0 && end == dims[dim]) return x;
  if (c.attention.beside_matmuls &&
      std::all_of(dims.begin(), dims.begin() + dim, [](int64_t d) { return d == 1; })) {
    const Value rows = g.apply(Reshape{.dims = {dims[dim], -1}}, {x});
    dims[dim] = end - begin;
    return g.apply(Reshape{.dims = dims}, {g.apply(SliceRows{.begin = begin, .end = end}, {rows})});
  }
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
