// The gated activation of Llama's feed-forward block, and Gemma's.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

// Gate and up have F columns each; "packed" means that both are one value [.., 2 F], gate's columns
// first.

/// The activation of the gate: SiLU, x / (1 + exp(-x)), or GELU in its approximation by tanh
/// (GeluKind::kTanh).
enum class GateKind : uint8_t { kSilu, kGelu };

/// Whether the gradient reads the values of gate and up or the codes that the forward has made of
/// them (gate_codes.h). kCodesIfKept reads values, of which keep_gate_codes() may make codes.
enum class GateInputs : uint8_t { kValues, kCodesIfKept, kCodes };

/// y = activation(gate) * up, rounded once. y may take the storage of either. With `makes_codes`
/// further outputs are E4M3 codes that lie as the input does, and their scales, E8M0 bytes: those
/// of gate and then those of up, or of the packed input, where each row has gate's scales first.
struct Swiglu {
  static constexpr std::string_view kName = "swiglu";
  bool packed = false;  ///< gate and up are one input
  GateKind kind = GateKind::kSilu;
  bool makes_codes = false;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, const Node& n, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::vector<Alias> aliases() const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// dgate, dup and, if asked for, Swiglu's y again, from gate, up, dy; each output may take the
/// storage of any input of its size. With kCodes it reads codes and scales, as Swiglu yields them,
/// in place of each input of values.
struct SwigluGrad {
  static constexpr std::string_view kName = "swiglu_grad";
  bool emits_y = false;  ///< a last output
  bool packed = false;   ///< gate and up are one input, dgate and dup one output
  GateKind kind = GateKind::kSilu;
  GateInputs gates = GateInputs::kValues;

  /// The place of dy, the last input.
  size_t dy_input() const { return (packed ? 1 : 2) * (gates == GateInputs::kCodes ? 2 : 1); }

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::vector<Alias> aliases() const;
  std::optional<AnyOp> emitting(const AnyOp& forward) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// Lets gradients that are marked kCodesIfKept read codes that the forward makes, where gate and up
/// are kept from the forward and no other node of the backward reads them.
Graph keep_gate_codes(const Graph& graph);

}  // namespace tokamak
