// Kernels that make 4-bit codes under scales of two levels (core/nvfp4.h).
#pragma once

#include "tokamak/core/nvfp4.h"
#include "tokamak/ops/float8/encode_gpu.cuh"

namespace tokamak::gpu {

constexpr int kNvfp4Length = static_cast<int>(kNvfp4Block);
constexpr int kNvfp4Tokens = static_cast<int>(kMxBlock);  ///< that a thread encodes transposed

/// What all threads of a quantization share.
struct Nvfp4Codes {
  const float* amax;
  const int64_t* sample;  ///< null: rounded to nearest
  uint64_t key;
  bool shares_blocks;  ///< 16 x 16 have one scale
  bool hadamard;
  uint8_t* codes;
  uint8_t* scales;
  int64_t rows, columns;  ///< of codes

  __device__ float tensor_scale() const { return nvfp4_tensor_scale(*amax); }

  /// Stores the scale of 16 values of `row` from `first` on and returns their codes, 4 bits each.
  __device__ uint2 encode(const float (&x)[kNvfp4Length], uint32_t most, int64_t row,
                          int64_t first) const {
    const float of_tensor = tensor_scale();
    const auto bits = static_cast<uint8_t>(
        encode_float8<E4M3>(nvfp4_block_ratio(__uint_as_float(most), of_tensor)));
    scales[scale_index(ScaleGrid::kNvfp4, rows, columns, row, first)] = bits;
    const float multiplier = nvfp4_multiplier(of_tensor, decode_float8<E4M3>(bits));
    const int64_t blocks = (columns + kNvfp4Length - 1) / kNvfp4Length;
    const auto place = static_cast<uint64_t>(row * blocks * kNvfp4Length + first);
    uint32_t words[2] = {};
#pragma unroll
    for (int i = 0; i < kNvfp4Length; i += 4) {
      std::array<uint32_t, 4> random{};
      if (sample != nullptr) random = philox(key, (place + i) / 4, static_cast<uint64_t>(*sample));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float scaled = x[i + j] * multiplier;
        const E2M1 code = sample != nullptr ? E2M1::stochastic(scaled, random[j]) : E2M1(scaled);
        words[i / 8] |= static_cast<uint32_t>(code.bits) << ((i + j) % 8 * 4);
      }
    }
    return {words[0], words[1]};
  }

  __device__ void store_tensor_scale() const {
    if (blockIdx.x == 0 && threadIdx.x == 0)
      *reinterpret_cast<float*>(scales + tensor_scale_index(rows, columns)) = tensor_scale();
  }
};

__device__ inline uint32_t greatest_of(const float (&x)[kNvfp4Length]) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < kNvfp4Length; ++i) most = max(most, magnitude_of(x[i]));
  return most;
}

// Encodes as x lies: a thread holds 16 neighbours of a row. Where 16 rows share a scale, they lie
// in as many neighbouring threads.
template <bool kWhole, class T>
__global__ void __launch_bounds__(kThreads) encode_nvfp4(Values<T> v, Nvfp4Codes to) {
  to.store_tensor_scale();
  const int64_t segments = (v.K + kNvfp4Length - 1) / kNvfp4Length;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t unit = to.shares_blocks ? i / kNvfp4Length : i;
  const int64_t row =
      to.shares_blocks ? unit / segments * kNvfp4Length + i % kNvfp4Length : unit / segments;
  const int64_t column = unit % segments * kNvfp4Length;
  float x[kNvfp4Length];
#pragma unroll
  for (int part = 0; part < kNvfp4Length; part += kEach) {
    T values[kEach];
    load_row<kWhole>(own_rows(v, row, column + part), 0, values);
#pragma unroll
    for (int j = 0; j < kEach; ++j) x[part + j] = value_of(values[j], v.to_bf16);
  }
  uint32_t most = greatest_of(x);
  if (to.shares_blocks) most = warp_max(most, kNvfp4Length);
  if (row >= v.M) return;
  const uint2 words = to.encode(x, most, row, column);
  uint8_t* into = to.codes + (row * v.K + column) / 2;
  if constexpr (kWhole) {
    *reinterpret_cast<uint2*>(into) = words;
  } else {
#pragma unroll
    for (int j = 0; j < kNvfp4Length / 2; ++j) {
      if (column + 2 * j < v.K)
        into[j] = static_cast<uint8_t>((j < 4 ? words.x : words.y) >> (j % 4 * 8));
    }
  }
}

template <class T>
__device__ inline void load_tokens(const Values<T>& v, int64_t row, int64_t column,
                                   float (&x)[kNvfp4Length]) {
#pragma unroll
  for (int i = 0; i < kNvfp4Length; ++i) {
    const bool is_inside = row + i < v.M && column < v.K;
    x[i] = is_inside ? value_of(v.x[(row + i) * v.K + column], v.to_bf16) : 0.0F;
  }
}

__device__ inline void turn(float (&x)[kNvfp4Length]) {
  hadamard_transform([&](uint32_t i) -> float& { return x[i]; });
}

// Encodes transposed: a thread holds 32 tokens of one column, as two blocks of 16.
template <class T>
__global__ void __launch_bounds__(kThreads) encode_nvfp4_columns(Values<T> v, Nvfp4Codes to) {
  to.store_tensor_scale();
  const auto parts = static_cast<unsigned>((v.K + kThreads - 1) / kThreads);
  const int64_t row = static_cast<int64_t>(blockIdx.x / parts) * kNvfp4Tokens;
  const int64_t column = static_cast<int64_t>(blockIdx.x % parts) * kThreads + threadIdx.x;
  uint32_t words[4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float x[kNvfp4Length];
    load_tokens(v, row + half * kNvfp4Length, column, x);
    if (to.hadamard) turn(x);
    uint32_t most = greatest_of(x);
    if (to.shares_blocks) most = warp_max(most, kNvfp4Length);
    if (column >= v.K) continue;
    const uint2 codes = to.encode(x, most, column, row + half * kNvfp4Length);
    words[2 * half] = codes.x;
    words[2 * half + 1] = codes.y;
  }
  if (column < v.K)
    store<4>(reinterpret_cast<uint32_t*>(to.codes + (column * to.columns + row) / 2), words);
}

// most[0] = max(most[0], |x|) of values turned along 16 tokens each.
template <class T>
__global__ void __launch_bounds__(kThreads) turned_amax(Values<T> v, uint32_t* most) {
  const auto parts = static_cast<unsigned>((v.K + kThreads - 1) / kThreads);
  const int64_t column = static_cast<int64_t>(blockIdx.x % parts) * kThreads + threadIdx.x;
  const int64_t bands = (v.M + kNvfp4Length - 1) / kNvfp4Length;
  uint32_t mine = 0;
  for (int64_t band = blockIdx.x / parts; band < bands; band += gridDim.x / parts) {
    float x[kNvfp4Length];
    load_tokens(v, band * kNvfp4Length, column, x);
    turn(x);
    mine = max(mine, greatest_of(x));
  }
  keep_block_maximum(mine, most);
}

template <class T>
void launch_turned_amax(const Values<T>& v, unsigned most_blocks, uint32_t* most,
                        cudaStream_t stream) {
  const auto parts = static_cast<unsigned>((v.K + kThreads - 1) / kThreads);
  const auto bands = static_cast<unsigned>((v.M + kNvfp4Length - 1) / kNvfp4Length);
  const unsigned at_once = std::min(bands, std::max(1U, most_blocks / parts));
  turned_amax<<<parts * at_once, kThreads, 0, stream>>>(v, most);
  TOK_CUDA_LAUNCHED();
}

/// Makes codes and their scales, transposed or as x lies.
template <class T>
void launch_nvfp4(const Quantize& op, const Values<T>& v, const KernelArgs& args) {
  const cudaStream_t stream = as_stream(args.stream);
  const bool transposed = op.layout == Quantize::Layout::kTransposed;
  const int64_t tokens = padded_tokens(v.M, op.grid);
  const Nvfp4Codes to{.amax = args.in[1].as<float>(),
                      .sample = op.is_stochastic ? args.in[2].as<int64_t>() : nullptr,
                      .key = rounding_key(0, op.stream),
                      .shares_blocks = op.grid == ScaleGrid::kNvfp4Blocks,
                      .hadamard = op.hadamard,
                      .codes = args.out[0].as<uint8_t>(),
                      .scales = args.out[1].as<uint8_t>(),
                      .rows = transposed ? v.K : v.M,
                      .columns = transposed ? tokens : v.K};
  TOK_CUDA(cudaMemsetAsync(to.scales, 0, static_cast<size_t>(args.out[1].numel()), stream));
  if (v.M * v.K == 0) return;
  if (transposed) {
    const int64_t parts = (v.K + kThreads - 1) / kThreads;
    encode_nvfp4_columns<<<static_cast<unsigned>(tokens / kNvfp4Tokens * parts), kThreads, 0,
                           stream>>>(v, to);
  } else {
    const int64_t rows = to.shares_blocks ? (v.M + 15) / 16 * 16 : v.M;
    const unsigned blocks = blocks_for(rows * ((v.K + kNvfp4Length - 1) / kNvfp4Length));
    const bool is_whole = v.K % kNvfp4Length == 0 && has_whole_rows(v.x, v.K);
    const auto kernel = is_whole ? encode_nvfp4<true, T> : encode_nvfp4<false, T>;
    kernel<<<blocks, kThreads, 0, stream>>>(v, to);
  }
  TOK_CUDA_LAUNCHED();
}

}  // namespace tokamak::gpu
