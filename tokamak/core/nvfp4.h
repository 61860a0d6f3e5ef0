// NVIDIA's 4-bit floats and their scales of two levels: one of a tensor in fp32, and one of each 16
// neighbours, or of each 16 x 16 block, in E4M3.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "tokamak/core/float8.h"
#include "tokamak/core/random.h"

namespace tokamak {

/// A float of a sign, two exponent bits and one mantissa bit, in the low half of a byte: 0, 0.5, 1,
/// 1.5, 2, 3, 4, 6. It has neither infinities nor NaNs.
struct E2M1 {
  static constexpr float kLargest = 6.0F;

  uint8_t bits = 0;

  E2M1() = default;

  /// Clamps to +-kLargest and rounds to nearest even. NaN becomes kLargest, as in cvt.satfinite.
  constexpr explicit E2M1(float x) {
    const float m = magnitude_of(x);
    uint32_t code = m > 0.25F ? 1U : 0U;
    code += m >= 0.75F ? 1U : 0U;
    code += m > 1.25F ? 1U : 0U;
    code += m >= 1.75F ? 1U : 0U;
    code += m > 2.5F ? 1U : 0U;
    code += m >= 3.5F ? 1U : 0U;
    code += m > 5.0F ? 1U : 0U;
    bits = static_cast<uint8_t>(sign_of(x) | code);
  }

  /// Clamps to +-kLargest and rounds to one of both neighbours, to the greater magnitude as often
  /// as x is near it, if `word` is uniform: the mean is x.
  static constexpr E2M1 stochastic(float x, uint32_t word) {
    const float m = magnitude_of(x);
    const float step = m < 2.0F ? 0.5F : m < 4.0F ? 1.0F : 2.0F;
    const uint32_t first = m < 2.0F ? 0U : m < 4.0F ? 2U : 4U;
    const float steps = m / step;
    const auto whole = static_cast<uint32_t>(steps);
    const float draw = static_cast<float>(word >> 8U) * 0x1p-24F;
    const uint32_t up = draw < steps - static_cast<float>(whole) ? 1U : 0U;
    E2M1 code;
    code.bits = static_cast<uint8_t>(sign_of(x) | (first + whole + up));
    return code;
  }

  constexpr explicit operator float() const {
    const uint32_t code = bits & 7U;
    const uint32_t whole = code < 2U ? code : 2U + (code & 1U);
    const float step = code < 4U ? 0.5F : code < 6U ? 1.0F : 2.0F;
    const float magnitude = static_cast<float>(whole) * step;
    return (bits & 8U) != 0 ? -magnitude : magnitude;
  }

 private:
  static constexpr float magnitude_of(float x) {
    const float m = x < 0.0F ? -x : x;
    return m < kLargest ? m : kLargest;
  }

  static constexpr uint32_t sign_of(float x) {
    return x == x ? std::bit_cast<uint32_t>(x) >> 28U & 8U : 0U;
  }
};

/// The number of neighbours under one scale of the lower level, and the edge of a block.
inline constexpr int64_t kNvfp4Block = 16;

/// Returns the scale of a tensor whose greatest magnitude is `amax`. Sources: torchao 0.17,
/// prototype/mx_formats/nvfp4_tensor.py, here and below.
constexpr float nvfp4_tensor_scale(float amax) {
  return amax / (E4M3::kLargest * E2M1::kLargest);
}

/// Whether a tensor's values all become zeros: those that are zeros, and those for which 1 /
/// tensor_scale would overflow.
constexpr bool is_nvfp4_zero(float tensor_scale) {
  return tensor_scale < 0x1p-120F;
}

/// Returns what E4M3 rounds to the scale of a block whose greatest magnitude is `amax`. NaN stays
/// one.
constexpr float nvfp4_block_ratio(float amax, float tensor_scale) {
  constexpr float kLeast = 0x1p-6F;
  if (is_nvfp4_zero(tensor_scale)) return kLeast;
  const float ratio = amax / E2M1::kLargest / tensor_scale;
  return ratio < kLeast ? kLeast : ratio > E4M3::kLargest ? E4M3::kLargest : ratio;
}

inline E4M3 nvfp4_block_scale(float amax, float tensor_scale) {
  return E4M3(nvfp4_block_ratio(amax, tensor_scale));
}

/// Returns what values are multiplied by before they become codes: 0 if the whole tensor is zero.
constexpr float nvfp4_multiplier(float tensor_scale, float block_scale) {
  return is_nvfp4_zero(tensor_scale) ? 0.0F : 1.0F / tensor_scale / block_scale;
}

/// The signs of the random Hadamard transform: bit i is set where value i is negated. Source:
/// Transformer Engine, pytorch/custom_recipes/quantization_nvfp4.py, get_wgrad_sign_vector.
inline constexpr uint32_t kHadamardSigns = 0xD7E8;

/// Replaces the values v(0), ..., v(15) by their random Hadamard transform x diag(signs) H / 4,
/// where H is Sylvester's matrix. It is orthogonal, so that the sum of the products of two vectors
/// stays what it is. Additions have one order, so that every backend has the same bits.
template <class V>
constexpr void hadamard_transform(V&& v) {
  for (uint32_t i = 0; i < 16; ++i) {
    if ((kHadamardSigns >> i & 1U) != 0) v(i) = -v(i);
  }
  for (uint32_t level = 0; level < 4; ++level) {
    const uint32_t half = 1U << level;
    for (uint32_t i = 0; i < 16; ++i) {
      if ((i & half) != 0) continue;
      const float a = v(i);
      const float b = v(i + half);
      v(i) = a + b;
      v(i + half) = a - b;
    }
  }
  for (uint32_t i = 0; i < 16; ++i) v(i) *= 0.25F;
}

/// The key of the random words by which one site's values are rounded.
constexpr uint64_t rounding_key(uint64_t seed, uint64_t stream) {
  const auto word = philox(seed, stream, stream_of("rounding"));
  return (uint64_t{word[1]} << 32U) | word[0];
}

}  // namespace tokamak
