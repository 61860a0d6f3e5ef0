// The activation of GPT-2's feed-forward block.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

/// kExact: x P(Z < x) for standard normal Z (Hugging Face's "gelu"). kTanh: its approximation
/// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) ("gelu_new", "gelu_pytorch_tanh"). kQuick:
/// x sigmoid(1.702 x). The others stand in its place in some models: kSilu x sigmoid(x), kRelu
/// max(x, 0), kHyperbolic tanh(x).
enum class GeluKind : uint8_t { kTanh, kExact, kQuick, kSilu, kRelu, kHyperbolic };

std::string_view name_of(GeluKind kind);

/// y = gelu(x); y may take the storage of x.
struct Gelu {
  static constexpr std::string_view kName = "gelu";
  GeluKind kind = GeluKind::kTanh;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, int32_t self, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0}}; }

  std::string describe() const { return std::string(name_of(kind)); }

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// dx = dy gelu'(x) and, if asked for, Gelu's y again; inputs x, dy; each output may take the
/// storage of either.
struct GeluGrad {
  static constexpr std::string_view kName = "gelu_grad";
  GeluKind kind = GeluKind::kTanh;
  bool emits_y = false;  ///< a second output

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<Alias> aliases() const {
    std::vector<Alias> all{{.out = 0, .in = 0}, {.out = 0, .in = 1}};
    if (emits_y) all.insert(all.end(), {{.out = 1, .in = 1}, {.out = 1, .in = 0}});
    return all;
  }

  std::optional<AnyOp> emitting(const AnyOp& forward) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
