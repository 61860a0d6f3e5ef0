#include "tokamak/ops/elementwise/swiglu.h"

#include "tokamak/ops/elementwise/gate_codes.h"

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

// Returns the type of the scales of codes that lie like `x`.
TensorType scales_of(const TensorType& x, bool packed) {
  Dims dims = x.dims;
  const int64_t halves = packed ? 2 : 1;
  dims.back() = halves * gate_scales(dims.back() / halves);
  return {.dtype = DType::kU8, .dims = std::move(dims)};
}

// Checks codes and their scales.
void require_codes(std::string_view op, const TensorType& codes, const TensorType& scales,
                   bool packed) {
  TOK_REQUIRE(codes.dtype == DType::kE4M3 && !codes.dims.empty(),
              "{}: wanted float8_e4m3 codes of gate and up, got {}", op, to_string(codes));
  const TensorType wanted = scales_of(codes, packed);
  TOK_REQUIRE(scales == wanted, "{}: codes {} want scales {}, got {}", op, to_string(codes),
              to_string(wanted), to_string(scales));
}

// A column of gate must stay with its column of up.
std::vector<Strategy> place(std::span<const TensorType> in, size_t num_out, bool by_row) {
  if (!by_row) return place_elementwise(in, num_out);
  return place_rows(in[0], std::vector<bool>(in.size(), true), std::vector<bool>(num_out, true));
}

Cost gate_cost(std::span<const TensorType> in, std::span<const TensorType> out, bool packed,
               double flops_per_element) {
  Cost cost = memory_cost(in, out, 0.0);
  cost.flops = flops_per_element * static_cast<double>(product_type(in[0], packed).numel());
  return cost;
}

std::string described(GateKind kind, bool packed, bool emits_y, std::string_view codes) {
  std::string text = kind == GateKind::kGelu ? "gelu" : "";
  const auto add = [&](bool holds, std::string_view word) {
    if (holds) text += fmt::format("{}{}", text.empty() ? "" : " ", word);
  };
  add(packed, "packed");
  add(emits_y, "with y");
  add(!codes.empty(), codes);
  return text;
}

}  // namespace

Types Swiglu::infer(std::span<const TensorType> in) const {
  const size_t wanted = packed ? 1 : 2;
  require_inputs(kName, in, wanted, wanted);
  require_gates(kName, in, packed);
  Types out{product_type(in[0], packed)};
  for (size_t k = 0; makes_codes && k < wanted; ++k) {
    out.push_back({.dtype = DType::kE4M3, .dims = in[k].dims});
    out.push_back(scales_of(in[k], packed));
  }
  return out;
}

std::vector<Strategy> Swiglu::place(std::span<const TensorType> in) const {
  return tokamak::place(in, makes_codes ? 1 + 2 * in.size() : 1, packed || makes_codes);
}

std::vector<Value> Swiglu::gradient(Graph& g, const Node& n, std::span<const Value> dy) const {
  TOK_CHECK(!makes_codes, "{}: codes are made after differentiation", kName);
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
  return described(kind, packed, false, makes_codes ? "with codes" : "");
}

Types SwigluGrad::infer(std::span<const TensorType> in) const {
  const size_t dy = dy_input();
  require_inputs(kName, in, dy + 1, dy + 1);
  TensorType like = in[0];
  if (gates == GateInputs::kCodes) {
    for (size_t k = 0; k < dy; k += 2) require_codes(kName, in[k], in[k + 1], packed);
    if (!packed) require_same_type(kName, "gate", in[0], "up", in[2]);
    TOK_REQUIRE(is_float(in[dy].dtype), "{}: dy is {}", kName, to_string(in[dy]));
    like.dtype = in[dy].dtype;
  }
  const Types values{like, gates != GateInputs::kCodes && !packed ? in[1] : like};
  require_gates(kName, values, packed);
  const TensorType y = product_type(like, packed);
  require_same_type(kName, packed ? "half of gate and up" : "gate", y, "dy", in[dy]);
  Types out(packed ? 1 : 2, like);
  if (emits_y) out.push_back(y);
  return out;
}

std::vector<Strategy> SwigluGrad::place(std::span<const TensorType> in) const {
  return tokamak::place(in, (packed ? 1 : 2) + (emits_y ? 1 : 0),
                        packed || gates == GateInputs::kCodes);
}

Cost SwigluGrad::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  const double work = kind == GateKind::kSilu ? 11.0 : 19.0;
  return gate_cost(in, out, packed, emits_y ? work + 1.0 : work);
}

std::vector<Alias> SwigluGrad::aliases() const {
  if (gates == GateInputs::kCodes) {
    const auto dy = static_cast<int>(dy_input());
    std::vector<Alias> all;
    if (!packed) all = {{.out = 0, .in = dy}, {.out = 1, .in = dy}};
    if (emits_y) all.push_back({.out = packed ? 1 : 2, .in = dy});
    return all;
  }
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
  if (emits_y || gates == GateInputs::kCodes || made == nullptr || made->packed != packed ||
      made->kind != kind)
    return std::nullopt;
  return any_op(SwigluGrad{.emits_y = true, .packed = packed, .kind = kind, .gates = gates});
}

std::string SwigluGrad::describe() const {
  return described(kind, packed, emits_y, gates == GateInputs::kCodes ? "of codes" : "");
}

}  // namespace tokamak
