// Codes of weights for the matmul that sums over their rows.
#pragma once

#include "tokamak/ops/float8/grid.h"
#include "tokamak/ops/rules.h"

namespace tokamak {

/// Codes [R, K] as [K, R], bit for bit what quantizing the transposed values makes; R is a multiple
/// of
/// 16. With kTensor the inverse scale stays. With kBlocks those of the blocks are a second input,
/// and transposed a second output.
struct TransposeCodes {
  static constexpr std::string_view kName = "transpose_codes";
  ScaleGrid grid = ScaleGrid::kTensor;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
