#include "tokamak/ops/elementwise/add.h"

namespace tokamak {

Types Add::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 2, 2);
  require_same_dims(kName, "a", in[0], "b", in[1]);
  TOK_REQUIRE(in[0].dtype == in[1].dtype, "add: a is {}, b is {}", to_string(in[0]),
              to_string(in[1]));
  return {in[0]};
}

std::vector<Strategy> Add::place(std::span<const TensorType> in) const {
  std::vector<Strategy> strategies = place_elementwise(in, 1);
  strategies.push_back({.in = {kPartialSum, kPartialSum}, .out = {kPartialSum}});
  return strategies;
}

std::vector<Value> Add::gradient(Graph&, int32_t, std::span<const Value> dy) const {
  return {dy[0], dy[0]};
}

Cost Add::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 1.0);
}

}  // namespace tokamak
