// The optimizers Adam and AdamW, as torch.optim computes them.
#pragma once

#include "tokamak/ops/optimizer/stochastic_rounding.h"
#include "tokamak/ops/rules.h"

namespace tokamak {

/// w, m, v, g, scalars f64 [4] = {lr, 1 - beta1^t, 1 - beta2^t, step}, factor f32 [1] -> w, m, v,
/// in place, by the t-th update. With g *= factor: w *= 1 - lr * weight_decay (or, not decoupled, g
/// += weight_decay * w); m += (1 - beta1) (g - m); v = beta2 v + (1 - beta2) g^2; w -= lr /
/// scalars[1] * m / (sqrt(v) / sqrt(scalars[2]) + eps). Sums are fp32 (fp64 from fp64), and no
/// product is fused with a sum, so that all backends give the same bits. Nothing is written where
/// the factor is not finite: a step that diverged changes no State. Each of `ranges` of a flat w
/// has its decay; elements outside all ranges stay as they are. With `has_copy` the last operand is
/// a copy of w in another float type, set to the new w as Cast rounds it. Moments have the dtype of
/// w or fp32. With `is_stochastic` they are bf16: the low and the high half of an element's random
/// word round its m and its v (stochastic_rounding.h), and w is updated by the moments before that.
struct AdamW {
  static constexpr std::string_view kName = "adamw";

  struct DecayRange {
    int64_t begin = 0;
    int64_t end = 0;
    double weight_decay = 0.0;
    uint64_t stream = 0;   ///< of the tensor's name, of whose elements these are at `places`
    ElementPlaces places;  ///< of elements from `begin` on
  };

  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  bool decoupled = true;           ///< false: the L2 penalty of torch.optim.Adam
  std::vector<DecayRange> ranges;  ///< empty: w is a whole tensor with weight_decay
  bool has_copy = false;
  bool is_stochastic = false;
  uint64_t seed = 0;    ///< of the random bits
  uint64_t stream = 0;  ///< without ranges: of w

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::vector<Alias> aliases() const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
