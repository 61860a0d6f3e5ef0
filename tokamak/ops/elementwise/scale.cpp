#include "tokamak/ops/elementwise/scale.h"

namespace tokamak {

Types Scale::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  TOK_REQUIRE(is_float(in[0].dtype), "scale: wanted a float type, got {}", to_string(in[0]));
  return {in[0]};
}

std::vector<Strategy> Scale::place(std::span<const TensorType> in) const {
  std::vector<Strategy> strategies = place_elementwise(in, 1);
  strategies.push_back({.in = {kPartialSum}, .out = {kPartialSum}});
  return strategies;
}

std::vector<Value> Scale::gradient(Graph& g, int32_t, std::span<const Value> dy) const {
  return {g.apply(*this, {dy[0]})};
}

Cost Scale::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 1.0);
}

std::string Scale::describe() const {
  return fmt::format("a={}", a);
}

}  // namespace tokamak
