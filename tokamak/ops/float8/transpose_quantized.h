// Quantized weights for the matmul that sums over their rows.
#pragma once

#include "tokamak/ops/float8/grid.h"
#include "tokamak/ops/rules.h"

namespace tokamak {

/// Transposes quantized values [R, K] to [K, R]; the result equals quantizing the transposed
/// values. R is a multiple of 16. With kTensor the one inverse scale stays valid. With kBlocks the
/// inverse scales are a second input, and a second output holds them transposed.
struct TransposeQuantized {
  static constexpr std::string_view kName = "transpose_quantized";
  ScaleGrid grid = ScaleGrid::kTensor;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
