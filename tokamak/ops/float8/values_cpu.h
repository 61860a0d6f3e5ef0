// Values as 8-bit matmuls take them, on a CPU.
#pragma once

#include <bit>

#include "tokamak/core/dtype.h"
#include "tokamak/cpu/dispatch.h"

namespace tokamak::cpu {

/// Returns x in fp32, rounded to bfloat16 first if asked for.
template <class T>
float rounded(T x, bool to_bf16) {
  const auto value = static_cast<float>(static_cast<Accum<T>>(x));
  return to_bf16 ? static_cast<float>(BF16(value)) : value;
}

/// Returns |x| as an integer: integers order magnitudes, and NaN is above all.
inline uint32_t magnitude_of(float x) {
  return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFU;
}

}  // namespace tokamak::cpu
