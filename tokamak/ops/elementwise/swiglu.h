// The gated activation of Llama's feed-forward block, and Gemma's.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

// Gate and up have F columns each; "packed" means that both are one value [.., 2 F], gate's columns
// first.

/// The activation of the gate: SiLU, x / (1 + exp(-x)), or GELU in its approximation by tanh
/// (GeluKind::kTanh).
enum class GateKind : uint8_t { kSilu, kGelu };

/// y = activation(gate) * up, rounded once. y may take the storage of either.
struct Swiglu {
  static constexpr std::string_view kName = "swiglu";
  bool packed = false;  ///< gate and up are one input
  GateKind kind = GateKind::kSilu;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, int32_t self, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::vector<Alias> aliases() const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// dgate, dup and, if asked for, Swiglu's y again, from gate, up, dy; each output may take the
/// storage of any input of its size.
struct SwigluGrad {
  static constexpr std::string_view kName = "swiglu_grad";
  bool emits_y = false;  ///< a last output
  bool packed = false;   ///< gate and up are one input, dgate and dup one output
  GateKind kind = GateKind::kSilu;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::vector<Alias> aliases() const;
  std::optional<AnyOp> emitting(const AnyOp& forward) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
