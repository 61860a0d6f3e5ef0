// Normalisation of rows by mean and variance.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

// D embed.

/// y[.., d] = w[d] (x[.., d] - mean_d(x)) / sqrt(variance_d(x) + eps) + b[d], inputs x, w, b;
/// computed in fp32 (fp64 from fp64) and rounded once.
struct LayerNorm {
  static constexpr std::string_view kName = "layer_norm";
  float eps = 1e-5F;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, const Node& n, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0}}; }

  std::optional<AnyOp> after(const AnyOp& producer) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// sum = x + branch, rounded, and y = LayerNorm(sum, w, b), inputs x, branch, w, b. sum may take
/// the storage of either.
struct AddLayerNorm {
  static constexpr std::string_view kName = "add_layer_norm";
  float eps = 1e-5F;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, const Node& n, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0}, {.out = 0, .in = 1}}; }

  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// dx (+)=, dw (+)= and db (+)=, inputs x, w, dy; dx is rounded once and may take the storage of
/// dy; dw and db are fp32 (fp64 from fp64).
struct LayerNormGrad {
  static constexpr std::string_view kName = "layer_norm_grad";
  float eps = 1e-5F;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<int> accumulates() const { return {0, 1, 2}; }

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 2}}; }

  std::string describe() const;

  static std::span<const Variant> variants();
};

}  // namespace tokamak
