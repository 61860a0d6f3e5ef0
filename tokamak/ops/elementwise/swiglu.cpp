#include "tokamak/ops/elementwise/swiglu.h"

namespace tokamak {
namespace {

// Checks gate and up, or the operand in their place.
void require_gates(std::string_view op, std::span<const TensorType> in, bool packed) {
  if (packed) {
    TOK_REQUIRE(!in[0].dims.empty() && in[0].dims.back() % 2 == 0,
                "{}: gate and up want an even number of columns, got {}", op, to_string(in[0]));
  } else {
    require_same_type(op, "gate", in[0], "up", in[1]);
  }
}

TensorType product_type(const TensorType& first, bool packed) {
  TensorType y = first;
  if (packed) y.dims.back() /= 2;
  return y;
}

// A column of gate must stay with its column of up.
std::vector<Strategy> place(std::span<const TensorType> in, size_t num_out, bool packed) {
  if (!packed) return place_elementwise(in, num_out);
  return place_rows(in[0], std::vector<bool>(in.size(), true), std::vector<bool>(num_out, true));
}

Cost gate_cost(std::span<const TensorType> in, std::span<const TensorType> out, bool packed,
               double flops_per_element) {
  Cost cost = memory_cost(in, out, 0.0);
  cost.flops = flops_per_element * static_cast<double>(product_type(in[0], packed).numel());
  return cost;
}

std::string described(GateKind kind, bool packed, bool emits_y) {
  std::string text = kind == GateKind::kGelu ? "gelu" : "";
  const auto add = [&](bool holds, std::string_view word) {
    if (holds) text += fmt::format("{}{}", text.empty() ? "" : " ", word);
  };
  add(packed, "packed");
  add(emits_y, "with y");
  return text;
}

}  // namespace

Types Swiglu::infer(std::span<const TensorType> in) const {
  const size_t wanted = packed ? 1 : 2;
  require_inputs(kName, in, wanted, wanted);
  require_gates(kName, in, packed);
  return {product_type(in[0], packed)};
}

std::vector<Strategy> Swiglu::place(std::span<const TensorType> in) const {
  return tokamak::place(in, 1, packed);
}

std::vector<Value> Swiglu::gradient(Graph& g, int32_t self, std::span<const Value> dy) const {
  const Node& n = g.node(self);
  std::vector<Value> in = n.in;
  in.push_back(dy[0]);
  return g.add(SwigluGrad{.packed = packed, .kind = kind}, in);
}

Cost Swiglu::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return gate_cost(in, out, packed, kind == GateKind::kSilu ? 5.0 : 11.0);
}

std::vector<Alias> Swiglu::aliases() const {
  if (packed) return {};
  return {{.out = 0, .in = 0}, {.out = 0, .in = 1}};
}

std::string Swiglu::describe() const {
  return described(kind, packed, false);
}

Types SwigluGrad::infer(std::span<const TensorType> in) const {
  const size_t gates = packed ? 1 : 2;
  require_inputs(kName, in, gates + 1, gates + 1);
  require_gates(kName, in, packed);
  const TensorType y = product_type(in[0], packed);
  require_same_type(kName, packed ? "half of gate and up" : "gate", y, "dy", in[gates]);
  Types out(gates, in[0]);
  if (emits_y) out.push_back(y);
  return out;
}

std::vector<Strategy> SwigluGrad::place(std::span<const TensorType> in) const {
  return tokamak::place(in, (packed ? 1 : 2) + (emits_y ? 1 : 0), packed);
}

Cost SwigluGrad::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  const double work = kind == GateKind::kSilu ? 11.0 : 19.0;
  return gate_cost(in, out, packed, emits_y ? work + 1.0 : work);
}

std::vector<Alias> SwigluGrad::aliases() const {
  if (packed) {
    std::vector<Alias> all{{.out = 0, .in = 0}};
    if (emits_y) all.push_back({.out = 1, .in = 1});
    return all;
  }
  std::vector<Alias> all{{.out = 0, .in = 0}, {.out = 1, .in = 1}, {.out = 0, .in = 2},
                         {.out = 1, .in = 2}, {.out = 0, .in = 1}, {.out = 1, .in = 0}};
  for (int in = 2; emits_y && in >= 0; --in) all.push_back({.out = 2, .in = in});
  return all;
}

std::optional<AnyOp> SwigluGrad::emitting(const AnyOp& forward) const {
  const auto* made = forward.as<Swiglu>();
  if (emits_y || made == nullptr || made->packed != packed || made->kind != kind)
    return std::nullopt;
  return any_op(SwigluGrad{.emits_y = true, .packed = packed, .kind = kind});
}

std::string SwigluGrad::describe() const {
  return described(kind, packed, emits_y);
}

}  // namespace tokamak
