#include "tokamak/ops/elementwise/gelu.h"

#include "tokamak/core/enum_array.h"

namespace tokamak {

std::string_view name_of(GeluKind kind) {
  constexpr EnumArray<GeluKind, std::string_view, 6> kNames{"tanh", "exact", "quick",
                                                            "silu", "relu",  "hyperbolic"};
  return kNames[kind];
}

Types Gelu::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 1, 1);
  TOK_REQUIRE(is_float(in[0].dtype), "gelu: wanted a float type, got {}", to_string(in[0]));
  return {in[0]};
}

std::vector<Strategy> Gelu::place(std::span<const TensorType> in) const {
  return place_elementwise(in, 1);
}

std::vector<Value> Gelu::gradient(Graph& g, int32_t self, std::span<const Value> dy) const {
  const Node& n = g.node(self);
  return {g.apply(GeluGrad{.kind = kind}, {n.in[0], dy[0]})};
}

Cost Gelu::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 10.0);
}

Types GeluGrad::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 2, 2);
  require_same_type(kName, "x", in[0], "dy", in[1]);
  return Types(emits_y ? 2 : 1, in[0]);
}

std::vector<Strategy> GeluGrad::place(std::span<const TensorType> in) const {
  return place_elementwise(in, emits_y ? 2 : 1);
}

Cost GeluGrad::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, emits_y ? 17.0 : 16.0);
}

std::optional<AnyOp> GeluGrad::emitting(const AnyOp& forward) const {
  const auto* gelu = forward.as<Gelu>();
  if (emits_y || gelu == nullptr || gelu->kind != kind) return std::nullopt;
  return any_op(GeluGrad{.kind = kind, .emits_y = true});
}

std::string GeluGrad::describe() const {
  return fmt::format("{}{}", name_of(kind), emits_y ? ", with y" : "");
}

}  // namespace tokamak
