// Maxima and codes of 8-bit matmuls.
#pragma once

#include "tokamak/ops/float8/grid.h"
#include "tokamak/ops/rules.h"

namespace tokamak {

// x is a matrix of M rows (all its leading dims) and K columns. Codes are dense along the dim over
// which a matmul sums: as x lies where that is K, else transposed, [K, M16], where M16 is M rounded
// up to a multiple of 16 and the padding is zeros.

/// Rows of x are so many columns of its transposed codes.
constexpr int64_t padded_tokens(int64_t rows) {
  return (rows + 15) / 16 * 16;
}

/// The greatest magnitude under each scale of `grid`, fp32, exact in any order; NaN is greatest.
/// The second input, if given, holds maxima of other values under the same scales. Source: torchao
/// 0.17, float8/float8_utils.py, tensor_to_amax.
struct Amax {
  static constexpr std::string_view kName = "amax";
  static constexpr bool kIsKept = true;  ///< a few bytes that save reading x again
  ScaleGrid grid = ScaleGrid::kTensor;
  bool transposed = false;
  DType rounds_to = DType::kF32;  ///< x is rounded to it first: what a compute copy would hold

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// codes = rne(clamp(x scale)) with scale = largest / amax (core/float8.h), and 1 / scale by which
/// matmuls multiply. Inputs: x, its maxima, which may be left out where takes_maxima(). Outputs:
/// codes as x lies, or transposed, or both, which needs a grid that transposition leaves alone;
/// then the inverse scales, fp32, in the dims of the maxima. Source: torchao 0.17,
/// float8/float8_training_tensor.py.
struct Quantize {
  static constexpr std::string_view kName = "quantize";

  enum class Layout : uint8_t { kRows, kTransposed, kBoth };

  DType format = DType::kE4M3;
  ScaleGrid grid = ScaleGrid::kTensor;
  Layout layout = Layout::kRows;
  bool power_of_two = false;
  DType rounds_to = DType::kF32;  ///< as Amax::rounds_to

  /// Whether what shares a scale lies so near that one pass takes its maximum and makes its codes.
  bool takes_maxima() const {
    return grid == ScaleGrid::kSegments || grid == ScaleGrid::kBlocks ||
           (grid == ScaleGrid::kRows && layout == Layout::kRows);
  }

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
