// The codes in which gate and up are kept for the gradient of SwiGLU.
#pragma once

#include <bit>
#include <cstdint>

#include "tokamak/core/mx.h"

namespace tokamak {

/// Neighbours of a row, of gate or of up, that share a scale; the last of a row may be fewer.
inline constexpr int64_t kGateSegment = 128;

/// Returns the number of scales of a row of `columns` codes.
constexpr int64_t gate_scales(int64_t columns) {
  return (columns + kGateSegment - 1) / kGateSegment;
}

/// Returns the inverse scale of E4M3 codes of values up to `amax`, the least power of two that maps
/// them to at most 448 = 1.75 * 2^8. An `amax` that is not finite gives NaN.
constexpr E8M0 gate_scale(float amax) {
  constexpr uint32_t kThreeQuarters = 0x600000U;
  constexpr uint32_t kLargestExponent = 8;
  const auto bits = std::bit_cast<uint32_t>(amax);
  if (bits > 0x7F7FFFFFU) return {255};
  const uint32_t exponent = (bits >> 23U) + ((bits & 0x7FFFFFU) > kThreeQuarters ? 1U : 0U);
  return {static_cast<uint8_t>(exponent > kLargestExponent ? exponent - kLargestExponent : 0U)};
}

}  // namespace tokamak
