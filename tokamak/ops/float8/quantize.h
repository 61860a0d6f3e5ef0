// Maxima and quantized values of 8-bit matmuls.
#pragma once

#include "tokamak/ops/float8/grid.h"
#include "tokamak/ops/rules.h"

namespace tokamak {

// x is a matrix of M rows (all its leading dims) and K columns. Quantized values are dense along
// the dim over which the matmul sums. They lie as x does if that dim is K; otherwise they are
// transposed to [K, M16], where M16 is M rounded up to a multiple of 16 (of 32 with kMx) and the
// padding is zeros.

/// Returns M16 for M rows of x.
constexpr int64_t padded_tokens(int64_t rows, ScaleGrid grid = ScaleGrid::kTensor) {
  const int64_t multiple = grid == ScaleGrid::kMx ? kMxBlock : 16;
  return (rows + multiple - 1) / multiple * multiple;
}

/// Returns what a price asks of scales that lie so.
Cost::Scales cost_scales(ScaleGrid grid);

/// Finds the greatest magnitude under each scale of `grid` (not kMx), in fp32. The result is exact
/// in any order, and NaN counts as greatest. An optional second input holds maxima of other values
/// under the same scales. With `is_gated` (kTensor only) the last input is a row of a table of
/// delayed scales (amax_history.h): where it has a scale x is not read and counts as zeros. Source:
/// torchao 0.17, float8/float8_utils.py, tensor_to_amax.
struct Amax {
  static constexpr std::string_view kName = "amax";
  static constexpr bool kIsKept = true;  ///< a few bytes save another pass over x
  ScaleGrid grid = ScaleGrid::kTensor;
  bool transposed = false;
  DType rounds_to = DType::kF32;  ///< x is rounded to it first, as a compute copy would be
  bool is_gated = false;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// quantized values = rne(clamp(x scale)), where scale = largest / amax (ops/float8/float8.h). The
/// inputs are x and its maxima, which may be left out if takes_maxima(), and must be with kMx,
/// whose scales are those of ops/float8/mx.h. The outputs are the quantized values as x lies, or
/// transposed, or both (kTensor, or kSegments with its own maxima), and then the inverse scales,
/// which have the dims of the maxima; those of both layouts of kSegments. With `is_delayed`
/// (kTensor only) a third input is a row of a table of delayed scales (amax_history.h), whose scale
/// is taken if it has one. With `has_amax` a last output holds the greatest magnitude of x or, of
/// kRows as x lies with its own maxima, those of its columns, as the transposed quantized values
/// want them. Source: torchao 0.17, float8/float8_training_tensor.py.
struct Quantize {
  static constexpr std::string_view kName = "quantize";

  enum class Layout : uint8_t { kRows, kTransposed, kBoth };

  DType format = DType::kE4M3;
  ScaleGrid grid = ScaleGrid::kTensor;
  Layout layout = Layout::kRows;
  bool power_of_two = false;
  bool rounds_up = false;         ///< kMx: see mx_scale()
  DType rounds_to = DType::kF32;  ///< see Amax::rounds_to
  bool is_delayed = false;
  bool has_amax = false;  ///< only with is_delayed or kRows

  /// The place of the inverse scales among the outputs.
  int inverse_output(bool transposed = false) const {
    if (layout != Layout::kBoth) return 1;
    return transposed && grid == ScaleGrid::kSegments ? 3 : 2;
  }

  /// The number of quantized values and inverse scales, the first outputs.
  int num_quantized_and_scales() const { return inverse_output(true) + 1; }

  /// Whether quantized values that share a scale lie close enough together for one pass to take
  /// their maximum and then encode them.
  bool takes_maxima() const {
    return grid == ScaleGrid::kSegments || grid == ScaleGrid::kBlocks || grid == ScaleGrid::kMx ||
           (grid == ScaleGrid::kRows && layout == Layout::kRows);
  }

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
