// The 8-bit floats of the Open Compute Project (OFP8 1.0), whose codes scaled values become, and
// the scales.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tokamak/core/dtype.h"

namespace tokamak {

namespace detail {

/// The code of `x` for a format of so many bits: clamped to +-largest, rounded to nearest even,
/// subnormals kept; NaN becomes the last code.
template <int kExponentBits, int kMantissaBits>
uint8_t encode_float8(float x, float largest) {
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  const auto u = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (u >> 24U) & 0x80U;
  if (std::isnan(x)) return static_cast<uint8_t>(sign | 0x7FU);
  const float magnitude = std::min(std::abs(x), largest);
  const float least_normal = std::ldexp(1.0F, 1 - kBias);
  if (magnitude < least_normal) {
    const float steps = std::nearbyint(std::ldexp(magnitude, kBias - 1 + kMantissaBits));
    return static_cast<uint8_t>(sign | static_cast<uint32_t>(steps));
  }
  constexpr uint32_t kDropped = 23 - kMantissaBits;
  const auto bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t odd = (bits >> kDropped) & 1U;
  const uint32_t rounded = (bits + (1U << (kDropped - 1U)) - 1U + odd) >> kDropped;
  return static_cast<uint8_t>(sign | (rounded - (uint32_t{127 - kBias} << kMantissaBits)));
}

template <int kExponentBits, int kMantissaBits>
float decode_float8(uint8_t bits) {
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  const int exponent = (bits & 0x7F) >> kMantissaBits;
  const int mantissa = bits & ((1 << kMantissaBits) - 1);
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), 1 - kBias - kMantissaBits)
                              : std::ldexp(static_cast<float>((1 << kMantissaBits) + mantissa),
                                           exponent - kBias - kMantissaBits);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

}  // namespace detail

/// float8_e4m3fn: no infinities, NaN is 0x7F and 0xFF.
struct E4M3 {
  static constexpr float kLargest = 448.0F;
  uint8_t bits = 0;

  E4M3() = default;

  explicit E4M3(float x) : bits(detail::encode_float8<4, 3>(x, kLargest)) {}

  explicit operator float() const {
    if ((bits & 0x7F) == 0x7F) return std::numeric_limits<float>::quiet_NaN();
    return detail::decode_float8<4, 3>(bits);
  }
};

/// float8_e5m2: infinities are decoded and never made.
struct E5M2 {
  static constexpr float kLargest = 57344.0F;
  uint8_t bits = 0;

  E5M2() = default;

  explicit E5M2(float x) : bits(detail::encode_float8<5, 2>(x, kLargest)) {}

  explicit operator float() const {
    const int magnitude = bits & 0x7F;
    if (magnitude > 0x7C) return std::numeric_limits<float>::quiet_NaN();
    if (magnitude < 0x7C) return detail::decode_float8<5, 2>(bits);
    const float infinity = std::numeric_limits<float>::infinity();
    return (bits & 0x80) != 0 ? -infinity : infinity;
  }
};

template <>
inline constexpr DType kDTypeOf<E4M3> = DType::kE4M3;
template <>
inline constexpr DType kDTypeOf<E5M2> = DType::kE5M2;

/// REQUIRES: is_float8(dtype).
constexpr float largest_of(DType dtype) {
  return dtype == DType::kE4M3 ? E4M3::kLargest : E5M2::kLargest;
}

/// What values of greatest magnitude `amax` are multiplied by, so that they fill a format. A power
/// of two is rounded down, so that nothing saturates; a NaN then becomes infinity. Infinity becomes
/// 0. Source: torchao 0.17, float8/float8_utils.py.
inline float float8_scale(float amax, float largest, bool power_of_two) {
  const double least = 1e-12;
  const auto scale =
      static_cast<float>(static_cast<double>(largest) / std::max(static_cast<double>(amax), least));
  if (!power_of_two) return scale;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & 0xFF800000U);
}

}  // namespace tokamak
