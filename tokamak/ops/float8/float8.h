// The 8-bit floats of the Open Compute Project (OFP8 1.0), and the scales that values are
// multiplied by before they become quantized values.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tokamak/core/dtype.h"

namespace tokamak {

/// A float of a sign and the given numbers of bits. E4M3 (float8_e4m3fn) has no infinities, and its
/// NaNs are 0x7F and 0xFF; E5M2 has IEEE's infinities, which are decoded but never produced.
template <int kExponent, int kMantissa>
struct Float8 {
  static constexpr int kExponentBits = kExponent;
  static constexpr int kMantissaBits = kMantissa;
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr float kLargest = kExponent == 4 ? 448.0F : 57344.0F;

  uint8_t bits = 0;

  Float8() = default;

  /// Clamps to +-kLargest and rounds to nearest even; keeps subnormals.
  explicit Float8(float x) {
    const auto u = std::bit_cast<uint32_t>(x);
    const uint32_t sign = (u >> 24U) & 0x80U;
    const float magnitude = std::min(std::abs(x), kLargest);
    uint32_t code = 0x7FU;
    if (std::isnan(x)) {
      // A NaN stays one.
    } else if (magnitude < std::ldexp(1.0F, 1 - kBias)) {
      code =
          static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, kBias - 1 + kMantissaBits)));
    } else {
      constexpr uint32_t kDropped = 23 - kMantissaBits;
      const auto whole = std::bit_cast<uint32_t>(magnitude);
      const uint32_t odd = (whole >> kDropped) & 1U;
      code = ((whole + (1U << (kDropped - 1U)) - 1U + odd) >> kDropped) -
             (uint32_t{127 - kBias} << kMantissaBits);
    }
    bits = static_cast<uint8_t>(sign | code);
  }

  explicit operator float() const {
    const int exponent = (bits & 0x7F) >> kMantissaBits;
    const int mantissa = bits & ((1 << kMantissaBits) - 1);
    float magnitude = 0.0F;
    if (kExponentBits == 4 ? (bits & 0x7F) == 0x7F : exponent == 31) {
      using Limits = std::numeric_limits<float>;
      magnitude = kExponentBits == 5 && mantissa == 0 ? Limits::infinity() : Limits::quiet_NaN();
    } else {
      const int whole = exponent == 0 ? mantissa : (1 << kMantissaBits) + mantissa;
      magnitude =
          std::ldexp(static_cast<float>(whole), std::max(exponent, 1) - kBias - kMantissaBits);
    }
    return (bits & 0x80) != 0 ? -magnitude : magnitude;
  }
};

using E4M3 = Float8<4, 3>;
using E5M2 = Float8<5, 2>;

template <>
inline constexpr DType kDTypeOf<E4M3> = DType::kE4M3;
template <>
inline constexpr DType kDTypeOf<E5M2> = DType::kE5M2;

/// REQUIRES: is_scaled(dtype).
constexpr float largest_of(DType dtype) {
  return dtype == DType::kE4M3 ? E4M3::kLargest : E5M2::kLargest;
}

/// Returns the scale that maps values of magnitude up to `amax` onto a format's whole range. A
/// power of two is rounded down, so that nothing saturates; a NaN then becomes infinity. An
/// infinite `amax` gives 0. Source: torchao 0.17, float8/float8_utils.py.
inline float float8_scale(float amax, float largest, bool power_of_two) {
  const double least = 1e-12;
  const auto scale =
      static_cast<float>(static_cast<double>(largest) / std::max(static_cast<double>(amax), least));
  if (!power_of_two) return scale;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & 0xFF800000U);
}

/// Returns the value of each code of `Format`, under scale 1.
template <class Format>
std::array<float, 256> float8_values() {
  std::array<float, 256> values{};
  for (size_t i = 0; i < values.size(); ++i) {
    Format code;
    code.bits = static_cast<uint8_t>(i);
    values[i] = static_cast<float>(code);
  }
  return values;
}

}  // namespace tokamak
