// Kernels that quantize under scales of 32 neighbours (ops/float8/mx.h).
#pragma once

#include "tokamak/ops/float8/encode_gpu.cuh"
#include "tokamak/ops/float8/mx.h"

namespace tokamak::gpu {

constexpr int kMxLength = static_cast<int>(kMxBlock);

struct MxScales {
  bool rounds_up;
  uint8_t* bytes;
  int64_t rows, columns;  // of quantized values

  __device__ uint8_t* at(int64_t row, int64_t column) const {
    return bytes + scale_index(ScaleGrid::kMx, rows, columns, row, column);
  }
};

// Encodes as x lies: kMxLength / kEach threads hold a segment.
template <bool kWhole, class Format, class T>
__global__ void __launch_bounds__(kThreads)
    encode_mx(Values<T> v, MxScales scales, uint8_t* quantized) {
  constexpr int kSegmentThreads = kMxLength / kEach;
  const int thread = static_cast<int>(threadIdx.x);
  const auto tiles = static_cast<unsigned>((v.K + kTile - 1) / kTile);
  const int64_t row = static_cast<int64_t>(blockIdx.x / tiles) * kTile + thread / kRowThreads;
  const int64_t column =
      static_cast<int64_t>(blockIdx.x % tiles) * kTile + thread % kRowThreads * kEach;
  const OwnRows<const T> own = own_rows(v, row, column);
  const OwnRows<uint8_t> into = own_rows(quantized, v.M, v.K, row, column, v.K);
#pragma unroll
  for (int round = 0; round < kRounds; round += kRoundsAtOnce) {
    T values[kRoundsAtOnce][kEach];
#pragma unroll
    for (int i = 0; i < kRoundsAtOnce; ++i)
      load_row<kWhole>(own, (round + i) * kRowsAtOnce, values[i]);
#pragma unroll
    for (int i = 0; i < kRoundsAtOnce; ++i) {
      const int r = (round + i) * kRowsAtOnce;
      round_each(values[i], v.to_bf16);
      const uint32_t most = warp_max(magnitude_of(values[i]), kSegmentThreads);
      if (!own.has(r)) continue;
      const E8M0 scale = mx_scale<Format>(__uint_as_float(most), scales.rounds_up);
      if (thread % kSegmentThreads == 0) *scales.at(row + r, column) = scale.bits;
      const float multiplier = mx_multiplier(scale);
      store_row<kWhole>(into, r, encode_each<Format>(values[i], [&](int) { return multiplier; }));
    }
  }
}

// Encodes transposed: a thread holds 32 tokens of one column.
template <class Format, class T>
__global__ void __launch_bounds__(kThreads)
    encode_mx_columns(Values<T> v, MxScales scales, uint8_t* quantized) {
  const auto parts = static_cast<unsigned>((v.K + kThreads - 1) / kThreads);
  const int64_t row = static_cast<int64_t>(blockIdx.x / parts) * kMxLength;
  const int64_t column = static_cast<int64_t>(blockIdx.x % parts) * kThreads + threadIdx.x;
  if (column >= v.K) return;
  T values[kMxLength];
#pragma unroll
  for (int i = 0; i < kMxLength; ++i)
    values[i] = row + i < v.M ? v.x[(row + i) * v.K + column] : T(0.0F);
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < kMxLength; ++i)
    most = max(most, magnitude_of(value_of(values[i], v.to_bf16)));
  const E8M0 scale = mx_scale<Format>(__uint_as_float(most), scales.rounds_up);
  *scales.at(column, row) = scale.bits;
  const float multiplier = mx_multiplier(scale);
  // Padding is zeros, though a scale may be NaN.
  const auto at = [&](int i) {
    return row + i < v.M ? value_of(values[i], v.to_bf16) * multiplier : 0.0F;
  };
  uint32_t words[kMxLength / 16][4];
#pragma unroll
  for (int i = 0; i < kMxLength; i += 4)
    words[i / 16][i / 4 % 4] = encode_float8<Format>(at(i), at(i + 1), at(i + 2), at(i + 3));
  auto* into = reinterpret_cast<uint32_t*>(quantized + column * scales.columns + row);
#pragma unroll
  for (int i = 0; i < kMxLength / 16; ++i) store<4>(into + 4 * i, words[i]);
}

/// Makes quantized values and their scales, transposed or as x lies.
template <class Format, class T>
void launch_mx(const Values<T>& v, bool rounds_up, bool transposed, uint8_t* quantized,
               uint8_t* bytes, cudaStream_t stream) {
  const int64_t tokens = padded_tokens(v.M, ScaleGrid::kMx);
  const MxScales scales{.rounds_up = rounds_up,
                        .bytes = bytes,
                        .rows = transposed ? v.K : v.M,
                        .columns = transposed ? tokens : v.K};
  const Dims dims = scale_dims(ScaleGrid::kMx, scales.rows, scales.columns);
  TOK_CUDA(
      cudaMemsetAsync(bytes, 0, static_cast<size_t>(TensorType{.dims = dims}.numel()), stream));
  if (v.M * v.K == 0) return;
  if (transposed) {
    const auto blocks =
        static_cast<unsigned>(tokens / kMxLength * ((v.K + kThreads - 1) / kThreads));
    encode_mx_columns<Format><<<blocks, kThreads, 0, stream>>>(v, scales, quantized);
  } else if (has_whole_rows(v.x, v.K) && detail::is_aligned(quantized)) {
    encode_mx<true, Format>
        <<<static_cast<unsigned>(tiles_of(v.M) * tiles_of(v.K)), kThreads, 0, stream>>>(v, scales,
                                                                                        quantized);
  } else {
    encode_mx<false, Format>
        <<<static_cast<unsigned>(tiles_of(v.M) * tiles_of(v.K)), kThreads, 0, stream>>>(v, scales,
                                                                                        quantized);
  }
  TOK_CUDA_LAUNCHED();
}

}  // namespace tokamak::gpu
