#include "tokamak/ops/elementwise/cast.h"

namespace tokamak {

Types Cast::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  TOK_REQUIRE(is_float(in[0].dtype) && is_float(dtype), "cast: wanted float types, got {} to {}",
              name_of(in[0].dtype), name_of(dtype));
  return {{.dtype = dtype, .dims = in[0].dims}};
}

std::vector<Strategy> Cast::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all = place_elementwise(in, 1);
  // Narrower sums would be rounded once on each rank.
  if (size_of(dtype) >= size_of(in[0].dtype))
    all.push_back({.in = {kPartialSum}, .out = {kPartialSum}});
  return all;
}

std::vector<Value> Cast::gradient(Graph& g, int32_t self, std::span<const Value> dy) const {
  const Node& n = g.node(self);
  return {g.apply(Cast{.dtype = g.type(n.in[0]).dtype}, {dy[0]})};
}

Cost Cast::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 0.0);
}

}  // namespace tokamak
