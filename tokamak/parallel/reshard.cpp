#include "tokamak/parallel/reshard.h"

#include <algorithm>

#include "tokamak/core/error.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/comm/collective_dim.h"
#include "tokamak/ops/layout/pack.h"
#include "tokamak/ops/layout/reshape.h"
#include "tokamak/ops/layout/slice_rows.h"

namespace tokamak {
namespace {

Dims sizes_of(const Ranges& ranges, int64_t local_extent, int64_t whole_extent) {
  Dims sizes;
  for (const Range& r : ranges) sizes.push_back(r.size() * local_extent / whole_extent);
  return sizes;
}

// Returns the leading elements of a flat, possibly padded piece, with these dims.
Value shaped(Graph& g, Value flat, const Dims& dims) {
  const TensorType want{.dtype = g.type(flat).dtype, .dims = dims};
  if (g.type(flat).numel() != want.numel()) {
    flat = g.apply(Reshape{.dims = {-1}}, {flat});
    flat = g.apply(SliceRows{.begin = 0, .end = want.numel()}, {flat});
  }
  return g.apply(Reshape{.dims = dims}, {flat});
}

bool is_even(const Dims& sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) { return size == sizes[0]; });
}

Value reduce_scatter(Graph& g, Value x, int dim, const Dims& sizes, const CommGroup& group) {
  TensorType type = g.type(x);
  if (is_even(sizes) && sizes[0] * group.size == type.dims[dim])
    return sum_scatter_dim(g, x, dim, group);
  const Value rows = g.apply(Split{.dim = dim, .sizes = sizes}, {x});
  const Value mine = g.apply(ReduceScatter{.group = group}, {rows});
  type.dims[dim] = sizes[group.rank];
  return shaped(g, mine, type.dims);
}

Value gather(Graph& g, Value x, const AxisPlacement& from, int64_t whole_extent,
             const CommGroup& group) {
  const Range mine = (*from.ranges)[group.rank];
  TOK_CHECK(is_even(sizes_of(*from.ranges, whole_extent, whole_extent)) &&
                mine.size() * group.size == whole_extent,
            "an uneven cut of {} is gathered", to_string(g.type(x)));
  return gather_dim(g, x, from.shard.dim, group);
}

}  // namespace

Value reshard(Graph& g, Value x, const CommGroup& group, const AxisPlacement& from,
              const AxisPlacement& to, const TensorType& whole) {
  const auto extent = [&](Shard s) { return whole.dims[s.dim]; };
  if (from.shard == kPartialSum && to.shard == kReplicated)
    return g.apply(AllReduce{.group = group}, {x});
  if (from.shard == kPartialSum) {
    const int64_t here = g.type(x).dims[to.shard.dim];
    return reduce_scatter(g, x, to.shard.dim, sizes_of(*to.ranges, here, extent(to.shard)), group);
  }
  if (from.shard == kReplicated) {
    const int64_t here = g.type(x).dims[to.shard.dim];
    const Dims sizes = sizes_of(*to.ranges, here, extent(to.shard));
    int64_t begin = 0;
    for (int r = 0; r < group.rank; ++r) begin += sizes[r];
    return g.apply(SliceDim{.dim = to.shard.dim, .begin = begin, .end = begin + sizes[group.rank]},
                   {x});
  }
  const Value gathered = gather(g, x, from, extent(from.shard), group);
  if (to.shard == kReplicated) return gathered;
  return reshard(g, gathered, group, {}, to, whole);
}

}  // namespace tokamak
