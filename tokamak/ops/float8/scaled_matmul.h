// The quantized matmul.
#pragma once

#include "tokamak/ops/float8/grid.h"
#include "tokamak/ops/rules.h"

namespace tokamak {

/// C[m, n] (+)= sum_k a[m, k] b[n, k], where a and b are quantized values times their inverse
/// scales; sums are fp32. The inputs are the quantized values of A [.., k] and their inverse
/// scales, the quantized values of B [n, k] and their inverse scales, and optionally a bias [n] of
/// C's type. C has the dims [.., n]. Source: Micikevicius et al., FP8 Formats for Deep Learning,
/// 2022.
struct ScaledMatmul {
  static constexpr std::string_view kName = "scaled_matmul";
  DType out = DType::kF32;
  ScaleGrid a_grid = ScaleGrid::kTensor;
  ScaleGrid b_grid = ScaleGrid::kTensor;
  bool fast_accumulation = false;  ///< GPU: sums stay in the tensor cores
  /// The role of C. A gradient can add to what is there. An output y must not, since its rounding
  /// would depend on whether the other term is kept for the backward.
  Cost::Product product = Cost::Product::kOutput;
  bool emulate = false;  ///< GPU: fp32 in this project's kernel, on any device

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<int> accumulates() const {
    return product == Cost::Product::kOutput ? std::vector<int>{} : std::vector<int>{0};
  }

  std::string describe() const;
  static std::span<const Variant> variants();
};

/// Returns the workspace of variant "onednn": operands decoded to fp32, and fp32 sums if C is
/// narrower.
int64_t decoded_bytes(const KernelTypes& types);

}  // namespace tokamak
