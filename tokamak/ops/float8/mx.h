// Block scales of the Open Compute Project (Microscaling Formats 1.0): powers of two.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace tokamak {

/// A power of two: 2^(bits - 127); 255 is NaN.
struct E8M0 {
  uint8_t bits = 0;

  constexpr explicit operator float() const {
    if (bits == 255) return std::numeric_limits<float>::quiet_NaN();
    return std::bit_cast<float>(bits == 0 ? 0x00400000U : uint32_t{bits} << 23U);
  }
};

/// Returns the inverse scale of values of magnitude up to `amax` that become quantized values of
/// `Format` (ops/float8/float8.h). If `rounds_up` it is amax / kLargest rounded up to a power of
/// two, so that nothing saturates; otherwise it maps the exponent of `amax` onto the format's
/// largest. An `amax` that is not finite gives NaN. Source: torchao 0.17,
/// prototype/mx_formats/mx_tensor.py, modes RCEIL and FLOOR, which map infinities to finite
/// quantized values.
template <class Format>
constexpr E8M0 mx_scale(float amax, bool rounds_up) {
  constexpr uint32_t kMantissa = 0x7FFFFFU;
  const auto whole = std::bit_cast<uint32_t>(amax);
  if (whole > 0x7F7FFFFFU) return {255};
  if (rounds_up) {
    const auto ratio = std::bit_cast<uint32_t>(amax / Format::kLargest);
    if (ratio <= 0x00400000U) return {0};
    return {static_cast<uint8_t>((ratio >> 23U) + ((ratio & kMantissa) != 0 ? 1U : 0U))};
  }
  const uint32_t largest = (std::bit_cast<uint32_t>(Format::kLargest) >> 23U) - 127U;
  const uint32_t exponent = whole >> 23U;
  return {static_cast<uint8_t>(exponent > largest ? exponent - largest : 0U)};
}

/// Returns what values are multiplied by before they become quantized values: the inverse of a
/// result of mx_scale(), which is exact. Below 2^-118 torchao multiplies by less, and loses such
/// values.
constexpr float mx_multiplier(E8M0 scale) {
  if (scale.bits == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>((254U - scale.bits) << 23U);
}

}  // namespace tokamak
