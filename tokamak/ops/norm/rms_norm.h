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

  std::optional<AnyOp> after(const AnyOp& producer) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// sum = x + branch, rounded, and y = RmsNorm(sum, w), inputs x, branch, w. sum may take the
/// storage of either.
struct AddRmsNorm {
  static constexpr std::string_view kName = "add_rms_norm";
  float eps = 1e-5F;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, const Node& n, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0}, {.out = 0, .in = 1}}; }

  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// dx (+)= and dw (+)=, inputs x, w, dy, and RmsNorm's y again if asked for; dx is rounded once and
/// may take the storage of dy; dw is fp32 (fp64 from fp64).
struct RmsNormGrad {
  static constexpr std::string_view kName = "rms_norm_grad";
  float eps = 1e-5F;
  bool emits_y = false;  ///< a third output

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<int> accumulates() const { return {0, 1}; }

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 2}}; }

  std::optional<AnyOp> emitting(const AnyOp& forward) const;
  std::string describe() const;

  static std::span<const Variant> variants();
};

}  // namespace tokamak
