// NVIDIA's 4-bit floats and their scales of two levels: one of a tensor in fp32, one of each 16
// neighbours in E4M3. These are values only; no op computes with them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "tokamak/core/float8.h"

namespace tokamak {

/// A float of a sign, two exponent bits and one mantissa bit, in the low half of a byte: 0, 0.5, 1,
/// 1.5, 2, 3, 4, 6. It has neither infinities nor NaNs.
struct E2M1 {
  static constexpr float kLargest = 6.0F;

  uint8_t bits = 0;

  E2M1() = default;

  /// Clamps to +-kLargest and rounds to nearest even. NaN becomes kLargest, as in cvt.satfinite.
  explicit E2M1(float x) {
    const float magnitude = std::isnan(x) ? kLargest : std::min(std::abs(x), kLargest);
    const float step = magnitude < 2.0F ? 0.5F : magnitude < 4.0F ? 1.0F : 2.0F;
    const auto steps = static_cast<uint32_t>(std::nearbyint(magnitude / step));
    const uint32_t first = magnitude < 2.0F ? 0U : magnitude < 4.0F ? 2U : 4U;
    const uint32_t sign = std::isnan(x) ? 0U : std::bit_cast<uint32_t>(x) >> 28U & 8U;
    bits = static_cast<uint8_t>(sign | (first + steps));
  }

  explicit operator float() const {
    const uint32_t code = bits & 7U;
    const float magnitude = code < 2 ? 0.5F * static_cast<float>(code)
                                     : std::ldexp(static_cast<float>(2U + (code & 1U)),
                                                  static_cast<int>(code >> 1U) - 2);
    return (bits & 8U) != 0 ? -magnitude : magnitude;
  }
};

/// The number of neighbours under one scale of the lower level.
inline constexpr int64_t kNvfp4Block = 16;

/// Returns the scale of a tensor whose greatest magnitude is `amax`. Sources: torchao 0.17,
/// prototype/mx_formats/nvfp4_tensor.py, here and below.
inline float nvfp4_tensor_scale(float amax) {
  return amax / (E4M3::kLargest * E2M1::kLargest);
}

/// Returns the scale of a block whose greatest magnitude is `amax`.
inline E4M3 nvfp4_block_scale(float amax, float tensor_scale) {
  constexpr float kLeast = 0x1p-6F;
  if (tensor_scale == 0.0F) return E4M3(kLeast);
  const float scale = amax / E2M1::kLargest / tensor_scale;
  return E4M3(std::isnan(scale) ? scale : std::clamp(scale, kLeast, E4M3::kLargest));
}

/// Returns what values are multiplied by before they become codes: 0 if the whole tensor is zero.
inline float nvfp4_multiplier(float tensor_scale, E4M3 block_scale) {
  return tensor_scale == 0.0F ? 0.0F : 1.0F / tensor_scale / static_cast<float>(block_scale);
}

}  // namespace tokamak
