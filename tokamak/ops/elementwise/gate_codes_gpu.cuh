// Codes of gate and up on a device: made by the kernels of SwiGLU, read by those of its gradient.
#pragma once

#include "tokamak/gpu/divisor.cuh"
#include "tokamak/gpu/float8.cuh"
#include "tokamak/ops/elementwise/gate_codes.h"
#include "tokamak/ops/float8/row_codes_gpu.cuh"

namespace tokamak::gpu {

/// Makes no codes.
struct NoGateCodes {
  template <int K, class T>
  __device__ void put(int64_t, const T (&)[K], const T (&)[K]) const {}
};

/// Makes codes in the kernel that loads gate and up, if kSegmentThreads neighbouring lanes hold
/// each segment by one access each.
struct GateCodes {
  uint8_t* gate;
  uint8_t* up;
  uint8_t* gate_scales;
  uint8_t* up_scales;

  /// Encodes K neighbours of each, at offset `at` of both. REQUIRES: rows are whole segments, and
  /// all lanes that hold a segment call it.
  template <int K, class T>
  __device__ void put(int64_t at, const T (&g)[K], const T (&u)[K]) const {
    constexpr int kHolders = static_cast<int>(kGateSegment) / K;
    if constexpr (K == Pack<T>::kSize && kHolders <= 32) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      const uint32_t lanes = kHolders == 32 ? 0xFFFFFFFFU : 0xFFFFU << (lane / 16 * 16);
      uint32_t most[2] = {magnitude_of(g), magnitude_of(u)};
#pragma unroll
      for (int d = kHolders / 2; d > 0; d /= 2) {
#pragma unroll
        for (int p = 0; p < 2; ++p) most[p] = max(most[p], __shfl_xor_sync(lanes, most[p], d));
      }
      const E8M0 of_gate = gate_scale(__uint_as_float(most[0]));
      const E8M0 of_up = gate_scale(__uint_as_float(most[1]));
      store_codes<E4M3>(g, mx_multiplier(of_gate), gate + at);
      store_codes<E4M3>(u, mx_multiplier(of_up), up + at);
      if (lane % kHolders == 0) gate_scales[at / kGateSegment] = of_gate.bits;
      if (lane % kHolders == 1) up_scales[at / kGateSegment] = of_up.bits;
    }
  }
};

// A warp takes a segment of a row of F values.
template <class T>
__global__ void __launch_bounds__(kThreads)
    encode_gates(const T* x, int64_t rows, int64_t F, uint8_t* codes, uint8_t* scales) {
  constexpr int kEachLane = static_cast<int>(kGateSegment) / 32;
  const int64_t segment = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const int64_t segments = gate_scales(F);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = segment / segments;
  if (row >= rows) return;
  const int64_t first = (segment - row * segments) * kGateSegment + lane;
  float values[kEachLane];
  uint32_t most = 0;
#pragma unroll
  for (int k = 0; k < kEachLane; ++k) {
    const int64_t column = first + 32 * k;
    values[k] = column < F ? to<float>(x[row * F + column]) : 0.0F;
    most = max(most, magnitude_of(values[k]));
  }
  const E8M0 scale = gate_scale(__uint_as_float(whole_warp_max(most)));
  const float multiplier = mx_multiplier(scale);
#pragma unroll
  for (int k = 0; k < kEachLane; ++k) {
    const int64_t column = first + 32 * k;
    if (column < F)
      codes[row * F + column] = static_cast<uint8_t>(encode_float8<E4M3>(values[k] * multiplier));
  }
  if (lane == 0) scales[segment] = scale.bits;
}

/// Makes codes of `rows` rows of F values in a pass of its own.
template <class T>
void launch_gate_codes(const T* x, int64_t rows, int64_t F, uint8_t* codes, uint8_t* scales,
                       DeviceStream stream) {
  constexpr int kWarps = kThreads / 32;
  const int64_t segments = rows * gate_scales(F);
  if (segments == 0) return;
  const auto blocks = static_cast<unsigned>((segments + kWarps - 1) / kWarps);
  encode_gates<<<blocks, kThreads, 0, as_stream(stream)>>>(x, rows, F, codes, scales);
  TOK_CUDA_LAUNCHED();
}

/// Codes of gate and up, F columns each, in rows of one matrix or of two.
struct CodedGates {
  const uint8_t* gate = nullptr;
  const uint8_t* up = nullptr;
  const uint8_t* gate_scales = nullptr;
  const uint8_t* up_scales = nullptr;
  int64_t row_codes = 0;   ///< from one row to the next
  int64_t row_scales = 0;  ///< the same of scales

  /// Decodes K neighbours of each. REQUIRES: they share a scale and, for K = 4 and 8, their codes
  /// begin at multiples of K bytes.
  template <int K, class T>
  __device__ void load(int64_t row, int64_t column, T (&g)[K], T (&u)[K]) const {
    const int64_t at = row * row_codes + column;
    const int64_t scale = row * row_scales + column / kGateSegment;
    decode(gate + at, gate_scales[scale], g);
    decode(up + at, up_scales[scale], u);
  }

  template <int K, class T>
  static __device__ void decode(const uint8_t* from, uint8_t scale, T (&into)[K]) {
    const auto inverse = static_cast<float>(E8M0{scale});
    if constexpr (K % 4 == 0) {
      uint32_t words[K / 4];
      if constexpr (K == 8) {
        const auto both = *reinterpret_cast<const uint2*>(from);
        words[0] = both.x;
        words[1] = both.y;
      } else {
#pragma unroll
        for (int w = 0; w < K / 4; ++w) words[w] = reinterpret_cast<const uint32_t*>(from)[w];
      }
#pragma unroll
      for (int w = 0; w < K / 4; ++w) {
        float four[4];
        decode_float8<E4M3>(words[w], four);
#pragma unroll
        for (int j = 0; j < 4; ++j) into[4 * w + j] = to<T>(four[j] * inverse);
      }
    } else {
#pragma unroll
      for (int k = 0; k < K; ++k) into[k] = to<T>(decode_float8<E4M3>(from[k]) * inverse);
    }
  }
};

/// Returns the codes that the first inputs of a gradient hold; dy is [M, F].
inline CodedGates coded_gates_of(const KernelArgs& args, bool packed, int64_t F) {
  const int64_t scales = gate_scales(F);
  CodedGates gates{.gate = args.in[0].as<uint8_t>(),
                   .gate_scales = args.in[1].as<uint8_t>(),
                   .row_codes = packed ? 2 * F : F,
                   .row_scales = packed ? 2 * scales : scales};
  gates.up = packed ? gates.gate + F : args.in[2].as<uint8_t>();
  gates.up_scales = packed ? gates.gate_scales + scales : args.in[3].as<uint8_t>();
  return gates;
}

}  // namespace tokamak::gpu
