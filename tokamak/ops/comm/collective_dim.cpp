#include "tokamak/ops/comm/collective_dim.h"

#include <functional>
#include <numeric>

#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/layout/pack.h"
#include "tokamak/ops/layout/reshape.h"

namespace tokamak {
namespace {

// Each slice before the dim is a separate call to NCCL: many short calls cost more than a copy.
constexpr int64_t kMostSlices = 16;

bool has_few_slices(const Dims& dims, int dim) {
  return std::accumulate(dims.begin(), dims.begin() + dim, int64_t{1}, std::multiplies<>()) <=
         kMostSlices;
}

}  // namespace

Value gather_dim(Graph& g, Value x, int dim, const CommGroup& group) {
  Dims dims = g.type(x).dims;
  if (has_few_slices(dims, dim)) return g.apply(AllGather{.group = group, .dim = dim}, {x});
  const std::vector<int64_t> sizes(group.size, dims[dim]);
  dims[dim] *= group.size;
  const Value rows = g.apply(AllGather{.group = group}, {x});
  return g.apply(Join{.dim = dim, .sizes = sizes, .dims = dims},
                 {g.apply(Reshape{.dims = {group.size, -1}}, {rows})});
}

Value sum_scatter_dim(Graph& g, Value x, int dim, const CommGroup& group) {
  Dims dims = g.type(x).dims;
  if (has_few_slices(dims, dim)) return g.apply(ReduceScatter{.group = group, .dim = dim}, {x});
  dims[dim] /= group.size;
  const std::vector<int64_t> sizes(group.size, dims[dim]);
  const Value rows = g.apply(Split{.dim = dim, .sizes = sizes}, {x});
  return g.apply(Reshape{.dims = dims}, {g.apply(ReduceScatter{.group = group}, {rows})});
}

}  // namespace tokamak
