// The matrix product of 8-bit codes.
#pragma once

#include "tokamak/ops/float8/grid.h"
#include "tokamak/ops/rules.h"

namespace tokamak {

/// C[m, n] (+)= sum_k a[m, k] b[n, k] with a and b decoded and multiplied by their inverse scales;
/// sums are fp32. Inputs: codes of A [.., k], their inverse scales, codes of B [n, k], their
/// inverse scales, and a bias [n] of C's type that may be left out. C is [.., n]. Source:
/// Micikevicius et al., FP8 Formats for Deep Learning, 2022.
struct ScaledMatmul {
  static constexpr std::string_view kName = "scaled_matmul";
  DType out = DType::kF32;
  ScaleGrid a_grid = ScaleGrid::kTensor;
  ScaleGrid b_grid = ScaleGrid::kTensor;
  bool fast_accumulation = false;  ///< GPU: sums stay in the tensor cores' accumulators
  bool is_gradient =
      false;             ///< C can add; a y that did would be rounded otherwise where it is kept
  bool emulate = false;  ///< GPU: this project's kernel, in fp32, on any device

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<int> accumulates() const {
    return is_gradient ? std::vector<int>{0} : std::vector<int>{};
  }

  std::string describe() const;
  static std::span<const Variant> variants();
};

/// Bytes of the fp32 operands of variant "onednn", and of its sums where C is narrower.
int64_t decoded_bytes(const KernelTypes& types);

}  // namespace tokamak
