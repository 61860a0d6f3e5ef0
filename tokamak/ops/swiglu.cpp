#include "tokamak/ops/swiglu.h"

namespace tokamak {

Types Swiglu::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 2, 2);
  require_same_type(kName, "gate", in[0], "up", in[1]);
  return {in[0]};
}

std::vector<Strategy> Swiglu::place(std::span<const TensorType> in) const {
  return place_elementwise(in, 1);
}

std::vector<Value> Swiglu::gradient(Graph& g, const Node& n, std::span<const Value> dy) const {
  return g.add(SwigluGrad{}, {n.in[0], n.in[1], dy[0]});
}

Cost Swiglu::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 5.0);
}

Types SwigluGrad::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, 3, 3);
  require_same_type(kName, "gate", in[0], "up", in[1]);
  require_same_type(kName, "gate", in[0], "dy", in[2]);
  return Types(emits_y ? 3 : 2, in[0]);
}

std::vector<Strategy> SwigluGrad::place(std::span<const TensorType> in) const {
  return place_elementwise(in, emits_y ? 3 : 2);
}

std::vector<Value> SwigluGrad::gradient(Graph&, const Node& n, std::span<const Value>) const {
  return no_gradient(n);
}

Cost SwigluGrad::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, emits_y ? 12.0 : 11.0);
}

std::optional<AnyOp> SwigluGrad::emitting(const AnyOp& forward) const {
  if (emits_y || forward.as<Swiglu>() == nullptr) return std::nullopt;
  return any_op(SwigluGrad{.emits_y = true});
}

std::string SwigluGrad::describe() const {
  return emits_y ? "with y" : "";
}

}  // namespace tokamak
