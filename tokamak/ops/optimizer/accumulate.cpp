#include "tokamak/ops/optimizer/accumulate.h"

namespace tokamak {

Types Accumulate::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  return {{.dtype = dtype, .dims = in[0].dims}};
}

std::vector<Strategy> Accumulate::place(std::span<const TensorType> in) const {
  std::vector<Strategy> all = place_elementwise(in, 1);
  // Narrower sums would be rounded once on each rank.
  if (size_of(dtype) >= size_of(in[0].dtype))
    all.push_back({.in = {kPartialSum}, .out = {kPartialSum}});
  return all;
}

Cost Accumulate::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 1.0);
}

Value accumulate_into(Graph& g, Value value, Value into, AccumulateMode mode) {
  const bool fits =
      g.type(value) == g.type(into) && (g.producer(into).is_leaf() || into.node < value.node);
  if (!fits || !g.can_accumulate(value)) {
    value = g.apply(Accumulate{.dtype = g.type(into).dtype}, {value});
  }
  g.accumulate(value, into, mode);
  return value;
}

}  // namespace tokamak
