// A recipe of 8-bit training: which operands are quantized, in which formats, under which scales.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tokamak/ops/float8/grid.h"

namespace tokamak {

/// Describes y = x w^T, dx = g w and dw = g^T x, where g is the gradient of y. Each grid lies over
/// quantized values that are dense along the dim over which the matmul sums. Sources: torchao 0.17,
/// float8/config.py; Transformer Engine, common/recipe (delayed); Liu et al., DeepSeek-V3, arXiv
/// 2412.19437, section 3.3.
struct Float8Recipe {
  std::string_view name;
  ScaleGrid x_of_y = ScaleGrid::kTensor;
  ScaleGrid w_of_y = ScaleGrid::kTensor;
  ScaleGrid g_of_dx = ScaleGrid::kTensor;
  ScaleGrid w_of_dx = ScaleGrid::kTensor;
  ScaleGrid of_dw = ScaleGrid::kTensor;  ///< of both g and x
  DType gradient = DType::kE5M2;         ///< the format of g
  bool has_dw = true;                    ///< false: dw is computed in the compute dtype
  bool power_of_two = false;             ///< scales are rounded down to powers of two
  bool rounds_up = false;                ///< scales of kMx, so that nothing saturates
  bool fast_y = true;                    ///< adds in the tensor cores' own precision

  // A run chooses these beside the recipe.
  bool from_master = false;  ///< weights are quantized from masters instead of compute copies
  bool fast_dx = false;
  bool fast_dw = false;
  bool shares_scales = true;  ///< among weights of one input, and among their output gradients
  int64_t history_len = 0;    ///< maxima of which delayed scales follow; 0: scales are not delayed
  int margin = 0;             ///< delayed scales leave this many powers of two above the maximum
  bool most_recent = false;   ///< delayed scales follow from the newest maximum, not the greatest
  bool emulate = false;       ///< the same quantized values are multiplied in fp32, on any device
  bool keeps_transposed = false;  ///< quantized weights that stay for a step, for the backward
  bool fuses = true;  ///< maxima and quantized values are made where values are (fused_float8.h)

  /// Whether a weight has one scale, so that owners of its parts can quantize these.
  bool gathers_quantized() const {
    return w_of_y == ScaleGrid::kTensor && w_of_dx == ScaleGrid::kTensor;
  }

  /// Whether the quantized y are those of dx, transposed.
  bool has_one_weight() const {
    return w_of_y == w_of_dx && (w_of_y == ScaleGrid::kTensor || w_of_y == ScaleGrid::kBlocks);
  }

  /// Whether dx and dw multiply the same quantized g.
  bool has_one_gradient() const {
    return g_of_dx == ScaleGrid::kTensor && of_dw == ScaleGrid::kTensor;
  }

  /// Whether one pass quantizes g for dx and dw.
  bool makes_both_at_once() const {
    return has_one_gradient() || (g_of_dx == ScaleGrid::kSegments && of_dw == ScaleGrid::kSegments);
  }

  /// Whether scales follow from maxima of earlier steps.
  bool is_delayed() const { return history_len > 0; }

  /// Both dims of a quantized weight must be multiples of this.
  int64_t multiple() const {
    return w_of_y == ScaleGrid::kBlocks ? kScaleBlock : is_mx() ? kMxBlock : 16;
  }

  /// Whether scales are those of microscaling formats, which want sm_100 or newer.
  bool is_mx() const { return w_of_y == ScaleGrid::kMx; }

  /// The section of the keys that choose it.
  std::string_view section() const {
    return is_mx() ? "quantize.linear.mx" : "quantize.linear.float8";
  }
};

/// Finds "tensorwise", "delayed", "rowwise", "rowwise_with_gw_hp", "blockwise", or one of torchao's
/// MX recipes "mxfp8_cublas", "mxfp8_cublas_rceil", "mxfp8_rceil" and "mxfp8_emulated"; returns
/// nothing for other names.
std::optional<Float8Recipe> find_float8_recipe(std::string_view name);

}  // namespace tokamak
