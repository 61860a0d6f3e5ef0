// The gated activation of Llama's feed-forward block.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

/// y = silu(gate) * up with silu(x) = x / (1 + exp(-x)); rounded once. y may take the storage of
/// either.
struct Swiglu {
  static constexpr std::string_view kName = "swiglu";

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, const Node& n, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0}, {.out = 0, .in = 1}}; }

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// dgate, dup from gate, up, dy, and Swiglu's y again if asked for; each may take the storage of
/// any input.
struct SwigluGrad {
  static constexpr std::string_view kName = "swiglu_grad";
  bool emits_y = false;  ///< a third output

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, const Node& n, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<Alias> aliases() const {
    std::vector<Alias> all{{.out = 0, .in = 0}, {.out = 1, .in = 1}, {.out = 0, .in = 2},
                           {.out = 1, .in = 2}, {.out = 0, .in = 1}, {.out = 1, .in = 0}};
    for (int in = 2; emits_y && in >= 0; --in) all.push_back({.out = 2, .in = in});
    return all;
  }

  std::optional<AnyOp> emitting(const AnyOp& forward) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
