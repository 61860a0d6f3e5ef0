// 8-bit floats (ops/float8/float8.h) on a device.
#pragma once

#include "tokamak/gpu/vendor.h"
#include "tokamak/ops/float8/float8.h"

#ifndef TOK_HIP
#include <cuda_fp8.h>
#endif

namespace tokamak::gpu {

/// Calls `f.operator()<Format>()` for the 8-bit float `dtype`.
template <class F>
auto by_float8(DType dtype, F&& f) {
  if (dtype == DType::kE4M3) return f.template operator()<E4M3>();
  return f.template operator()<E5M2>();
}

#ifdef TOK_HIP

/// The code of x, clamped and rounded to nearest even.
template <class Format>
__device__ inline uint32_t encode_float8(float x) {
  constexpr int kDropped = 23 - Format::kMantissaBits;
  const uint32_t sign = __float_as_uint(x) >> 24U & 0x80U;
  if (x != x) return sign | 0x7FU;
  const float magnitude = fminf(fabsf(x), Format::kLargest);
  if (magnitude < ldexpf(1.0F, 1 - Format::kBias)) {
    const float steps = rintf(ldexpf(magnitude, Format::kBias - 1 + Format::kMantissaBits));
    return sign | static_cast<uint32_t>(steps);
  }
  const uint32_t bits = __float_as_uint(magnitude);
  const uint32_t odd = bits >> kDropped & 1U;
  const uint32_t rounded = (bits + (1U << (kDropped - 1)) - 1U + odd) >> kDropped;
  return sign | (rounded - (uint32_t{127 - Format::kBias} << Format::kMantissaBits));
}

/// The quantized values of four values, the first in the lowest byte.
template <class Format>
__device__ inline uint32_t encode_float8(float a, float b, float c, float d) {
  return encode_float8<Format>(a) | encode_float8<Format>(b) << 8U |
         encode_float8<Format>(c) << 16U | encode_float8<Format>(d) << 24U;
}

template <class Format>
__device__ inline float decode_float8(uint8_t code) {
  const int exponent = (code & 0x7F) >> Format::kMantissaBits;
  const int mantissa = code & ((1 << Format::kMantissaBits) - 1);
  const bool is_special = Format::kExponentBits == 4 ? (code & 0x7F) == 0x7F : exponent == 31;
  float magnitude = 0.0F;
  if (is_special) {
    const bool is_infinite = Format::kExponentBits == 5 && mantissa == 0;
    magnitude = __uint_as_float(is_infinite ? 0x7F800000U : 0x7FC00000U);
  } else {
    const int whole = exponent == 0 ? mantissa : (1 << Format::kMantissaBits) + mantissa;
    magnitude =
        ldexpf(static_cast<float>(whole), max(exponent, 1) - Format::kBias - Format::kMantissaBits);
  }
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

#else

namespace detail {

template <class Format>
inline constexpr __nv_fp8_interpretation_t kInterpretation =
    Format::kExponentBits == 4 ? __NV_E4M3 : __NV_E5M2;

}  // namespace detail

/// The code of x, clamped and rounded to nearest even.
template <class Format>
__device__ inline uint32_t encode_float8(float x) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, detail::kInterpretation<Format>);
}

/// The quantized values of four values, the first in the lowest byte.
template <class Format>
__device__ inline uint32_t encode_float8(float a, float b, float c, float d) {
  constexpr auto kFormat = detail::kInterpretation<Format>;
  const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kFormat);
  const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, kFormat);
  return low | high << 16U;
}

template <class Format>
__device__ inline float decode_float8(uint8_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, detail::kInterpretation<Format>)));
}

#endif

}  // namespace tokamak::gpu
