#include <algorithm>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/ops/float8/transpose_quantized.h"

namespace tokamak::cpu {

Kernel prepare(const TransposeQuantized& op, const KernelTypes& types, std::string_view) {
  const int64_t R = types.in[0].dims[0];
  const int64_t K = types.in[0].dims[1];
  return [=, grid = op.grid](const KernelArgs& a) {
    const auto* quantized = a.in[0].as<uint8_t>();
    auto* into = a.out[0].as<uint8_t>();
    parallel_rows(K, [&](int64_t k) {
      for (int64_t r = 0; r < R; ++r) into[k * R + r] = quantized[r * K + k];
    });
    if (grid == ScaleGrid::kTensor) return;
    const auto* scales = a.in[1].as<float>();
    auto* scales_into = a.out[1].as<float>();
    std::fill_n(scales_into, a.out[1].numel(), 0.0F);
    for (int64_t r = 0; r < R; r += kScaleBlock) {
      for (int64_t k = 0; k < K; k += kScaleBlock)
        scales_into[scale_index(grid, K, R, k, r)] = scales[scale_index(grid, R, K, r, k)];
    }
  };
}

}  // namespace tokamak::cpu
