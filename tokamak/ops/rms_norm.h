// Root-mean-square normalisation of rows.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

// D embed.

/// y[.., d] = w[d] x[.., d] / sqrt(mean_d(x^2) + eps), inputs x, w. The statistic is fp32 (fp64
/// from fp64) and the normalised row is rounded to x's dtype before it meets w, as Hugging Face
/// does.
struct RmsNorm {
  static constexpr std::string_view kName = "rms_norm";
  float eps = 1e-5F;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, const Node& n, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0}}; }

  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// dx and dw (+)=, inputs x, w, dy; dx may take the storage of dy; dw is fp32 (fp64 from fp64).
struct RmsNormGrad {
  static constexpr std::string_view kName = "rms_norm_grad";
  float eps = 1e-5F;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, const Node& n, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<int> accumulates() const { return {1}; }

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 2}}; }

  std::string describe() const;

  static std::span<const Variant> variants();
};

}  // namespace tokamak
