// The kernels of ops that take the amax of their output or quantize it.
#pragma once

#include "tokamak/ops/attention/rope.h"
#include "tokamak/ops/elementwise/gelu.h"
#include "tokamak/ops/elementwise/swiglu.h"
#include "tokamak/ops/float8/delayed_scales_gpu.cuh"
#include "tokamak/ops/float8/fused_float8.h"
#include "tokamak/ops/float8/quantized_rows_gpu.cuh"
#include "tokamak/ops/norm/norm.h"

namespace tokamak::gpu {

/// What a kernel makes of output_with_maximum() besides the op's output.
struct FusedOutput {
  bool stores = true;  ///< the output itself; only quantized values of rows may take its place
  bool stores_others = true;   ///< the other outputs
  bool takes_maximum = false;  ///< the greatest magnitude, the op's last output
  bool quantizes =
      false;  ///< of rows: the op's last outputs are quantized values and inverse scales
  bool of_segments = false;    ///< each 128 neighbours have a scale, not each row
  bool power_of_two = false;   ///< scales are rounded down to powers of two
  bool takes_columns = false;  ///< the op's last output holds maxima of columns
  int most_blocks = 0;         ///< that take them
  /// Quantized values have one delayed scale, and the op's last inputs are a maximum and a row of
  /// its table. Without quantizes a maximum is taken, and nothing stored, if the row, which is
  /// the op's last input, has no scale.
  bool is_delayed = false;

  /// Whether quantized values of rows are made under scales of rows or segments.
  bool quantizes_rows() const { return quantizes && !is_delayed; }

  /// Whether nothing is done where a row has a scale.
  bool is_gated() const { return is_delayed && !quantizes; }
};

/// Prepare the kernel of an op with a fused output. `types` has the op's own inputs first; only
/// those of quantizes_rows() make quantized values.
Kernel prepare_fused(const RmsNorm& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup);
Kernel prepare_fused(const AddRmsNorm& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup);
Kernel prepare_fused(const RmsNormGrad& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup);
Kernel prepare_fused(const LayerNorm& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup);
Kernel prepare_fused(const AddLayerNorm& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup);
Kernel prepare_fused(const LayerNormGrad& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup);
Kernel prepare_fused(const Swiglu& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup);
Kernel prepare_fused(const SwigluGrad& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup);
Kernel prepare_fused(const Gelu& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup);
Kernel prepare_fused(const GeluGrad& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup);
Kernel prepare_fused(const Rope& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup);
Kernel prepare_fused(const RopeConcat& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup& setup);

/// Returns where quantized values go that a kernel makes.
inline QuantizedRows quantized_of(const KernelArgs& args, const FusedOutput& fused) {
  if (!fused.quantizes_rows()) return {};
  const size_t end = args.out.size() - (fused.takes_columns ? 1 : 0);
  return {.values = args.out[end - 2].as<uint8_t>(),
          .inverse = args.out[end - 1].as<float>(),
          .columns = fused.takes_columns ? args.out[end].as<uint32_t>() : nullptr,
          .of_segments = fused.of_segments,
          .power_of_two = fused.power_of_two,
          .most_blocks = fused.most_blocks};
}

/// Returns where quantized values go that a kernel makes under a delayed scale.
inline QuantizedUnderDelayed delayed_of(const KernelArgs& args, const FusedOutput& fused) {
  if (!fused.is_delayed || !fused.quantizes) return {};
  const size_t end = args.out.size() - (fused.takes_maximum ? 1 : 0);
  return {.values = args.out[end - 2].as<uint8_t>(),
          .inverse = args.out[end - 1].as<float>(),
          .amax = args.in[args.in.size() - 2].as<float>(),
          .delayed = {.row = args.in.back().as<float>()},
          .power_of_two = fused.power_of_two};
}

/// Returns the row that decides whether a maximum is taken, and where that goes; none if it always
/// is.
inline Delayed gate_of(const KernelArgs& args, const FusedOutput& fused) {
  if (!fused.is_gated()) return {};
  return {.row = args.in.back().as<float>(), .most = args.out.back().as<uint32_t>()};
}

}  // namespace tokamak::gpu
