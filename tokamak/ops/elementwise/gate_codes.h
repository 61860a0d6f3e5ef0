// The codes in which gate and up are kept for the gradient of SwiGLU.
#pragma once

#include <cstdint>

#include "tokamak/core/float8.h"
#include "tokamak/core/mx.h"

namespace tokamak {

/// Neighbours of a row, of gate or of up, that share a scale; the last of a row may be fewer.
inline constexpr int64_t kGateSegment = 128;

/// Returns the number of scales of a row of `columns` codes.
constexpr int64_t gate_scales(int64_t columns) {
  return (columns + kGateSegment - 1) / kGateSegment;
}

/// Returns the inverse scale of E4M3 codes of values up to `amax`, so that nothing saturates.
constexpr E8M0 gate_scale(float amax) {
  return mx_scale<E4M3>(amax, true);
}

}  // namespace tokamak
