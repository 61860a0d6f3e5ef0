#include <algorithm>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/ops/float8/transpose_codes.h"

namespace tokamak::cpu {

namespace {

// Codes of 4 bits, [R, K] to [K, R], and their scales.
Kernel transpose_nvfp4(int64_t R, int64_t K) {
  return [=](const KernelArgs& a) {
    const auto* codes = a.in[0].as<uint8_t>();
    const auto* scales = a.in[1].as<uint8_t>();
    auto* into = a.out[0].as<uint8_t>();
    auto* scales_into = a.out[1].as<uint8_t>();
    const auto at = [=](int64_t r, int64_t k) {
      return codes[(r * K + k) / 2] >> (k % 2 * 4) & 15;
    };
    std::fill_n(scales_into, a.out[1].numel(), uint8_t{0});
    std::copy_n(scales + tensor_scale_index(R, K), 16, scales_into + tensor_scale_index(K, R));
    parallel_rows(K, [&](int64_t k) {
      for (int64_t r = 0; r < R; r += 2)
        into[(k * R + r) / 2] = static_cast<uint8_t>(at(r, k) | at(r + 1, k) << 4);
      for (int64_t r = 0; r < R; r += 16) {
        scales_into[scale_index(ScaleGrid::kNvfp4Blocks, K, R, k, r)] =
            scales[scale_index(ScaleGrid::kNvfp4Blocks, R, K, r, k)];
      }
    });
  };
}

}  // namespace

Kernel prepare(const TransposeCodes& op, const KernelTypes& types, std::string_view) {
  const int64_t R = types.in[0].dims[0];
  const int64_t K = types.in[0].dims[1];
  if (op.grid == ScaleGrid::kNvfp4Blocks) return transpose_nvfp4(R, 2 * K);
  return [=, grid = op.grid](const KernelArgs& a) {
    const auto* codes = a.in[0].as<uint8_t>();
    auto* into = a.out[0].as<uint8_t>();
    parallel_rows(K, [&](int64_t k) {
      for (int64_t r = 0; r < R; ++r) into[k * R + r] = codes[r * K + k];
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
