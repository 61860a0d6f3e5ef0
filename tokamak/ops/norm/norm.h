// Normalisation of rows: by their root mean square, or by their mean and variance.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

enum class NormKind { kRms, kLayer };

// D embed. A row of x is normalised to h, to which the parameters p, of D elements each, are
// applied:
//   kRms    h = x / sqrt(mean_d(x^2) + eps), y = w h, p = {w}. The statistic is fp32 (fp64 from
//           fp64), and h is rounded to x's dtype before it is multiplied, as Hugging Face does.
//           If `zero_centered`, y = (1 + w) h, rounded once, as Gemma does.
//   kLayer  h = (x - mean_d(x)) / sqrt(variance_d(x) + eps), y = w h + b, p = {w, b}; computed in
//           fp32 (fp64 from fp64) and rounded once.

/// y from inputs x, p.
template <NormKind kKind>
struct Norm {
  static constexpr std::string_view kName = kKind == NormKind::kRms ? "rms_norm" : "layer_norm";
  float eps = 1e-5F;
  bool zero_centered = false;  ///< of kRms only

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, int32_t self, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0}}; }

  std::optional<AnyOp> after(const AnyOp& producer) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// sum = x + branch, rounded, and y from sum; inputs x, branch, p. sum may take the storage of x or
/// branch.
template <NormKind kKind>
struct AddNorm {
  static constexpr std::string_view kName =
      kKind == NormKind::kRms ? "add_rms_norm" : "add_layer_norm";
  float eps = 1e-5F;
  bool zero_centered = false;  ///< of kRms only

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, int32_t self, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0}, {.out = 0, .in = 1}}; }

  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// dx (+)= and dp (+)= for each parameter; inputs x, w, dy. dx is rounded once and may take the
/// storage of dy; dp is fp32 (fp64 from fp64). kRms also makes y again if asked for.
template <NormKind kKind>
struct NormGrad {
  static constexpr std::string_view kName =
      kKind == NormKind::kRms ? "rms_norm_grad" : "layer_norm_grad";
  float eps = 1e-5F;
  bool emits_y = false;        ///< a last output, of kRms only
  bool zero_centered = false;  ///< of kRms only

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::vector<int> accumulates() const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 2}}; }

  std::optional<AnyOp> emitting(const AnyOp& forward) const;
  std::string describe() const;

  static std::span<const Variant> variants();
};

using RmsNorm = Norm<NormKind::kRms>;
using AddRmsNorm = AddNorm<NormKind::kRms>;
using RmsNormGrad = NormGrad<NormKind::kRms>;
using LayerNorm = Norm<NormKind::kLayer>;
using AddLayerNorm = AddNorm<NormKind::kLayer>;
using LayerNormGrad = NormGrad<NormKind::kLayer>;

}  // namespace tokamak
