// Kernels that quantize tiles and rows.
#pragma once

#include "tokamak/ops/float8/float8_gpu.cuh"
#include "tokamak/ops/float8/tiles_gpu.cuh"

namespace tokamak::gpu {

// float8_scale of ops/float8/float8.h. Division in fp32 has its bits: a quotient of floats that is
// rounded to double first rounds to the same float. So has a comparison with the least float that
// is not below 1e-12.
template <class Format>
__device__ inline float scale_of(float amax, bool power_of_two) {
  constexpr auto kMost = static_cast<float>(static_cast<double>(Format::kLargest) / 1e-12);
  constexpr float kLeast = 0x1.19799ap-40F;
  static_assert(static_cast<double>(kLeast) >= 1e-12 &&
                static_cast<double>(kLeast - 0x1p-63F) < 1e-12);
  // NaN compares as not less, and stays NaN.
  const float scale = amax < kLeast ? kMost : Format::kLargest / amax;
  return power_of_two ? __uint_as_float(__float_as_uint(scale) & 0xFF800000U) : scale;
}

/// A row of a table of delayed scales, and where the maximum goes; null if there is none.
struct Delayed {
  const float* row = nullptr;
  uint32_t* most = nullptr;

  __device__ bool has_scale() const { return row != nullptr && *row > 0.0F; }

  template <class Format>
  __device__ float scale_of(float amax, bool power_of_two) const {
    return has_scale() ? *row : gpu::scale_of<Format>(amax, power_of_two);
  }
};

/// Keeps the greater of `most` and the maximum of all threads of the block.
__device__ inline void keep_block_maximum(uint32_t mine, uint32_t* most) {
  __shared__ uint32_t parts[kThreads / 32];
  mine = warp_max(mine, 32);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  mine = warp_max(threadIdx.x < kThreads / 32 ? parts[threadIdx.x] : 0, 32);
  if (threadIdx.x == 0) atomicMax(most, mine);
}

/// Returns the quantized values of a thread's neighbours; scale(j) is the scale of the j-th.
template <class Format, class T, class Scale>
__device__ inline uint2 encode_each(const T (&x)[kEach], const Scale& scale) {
  float values[kEach];
  to_floats(x, values);
  const auto at = [&](int j) { return values[j] * scale(j); };
  return {encode_float8<Format>(at(0), at(1), at(2), at(3)),
          encode_float8<Format>(at(4), at(5), at(6), at(7))};
}

template <class T>
struct QuantizedTile {
  Values<T> values;
  TileScales scales;
  const float* amax;
  float* inverse;  // null if another kernel makes them
  bool power_of_two;
  uint8_t* rows;        // as x lies, or null
  uint8_t* transposed;  // or null
  Delayed delayed = {};
};

// Words of 4 quantized values of a row of a tile in shared memory. The padding after each 16 rows
// lets 8 threads that read rows 16 apart, 4 neighbouring words each, meet all banks. A row that is
// a multiple of 16 below another lies word_at(that multiple, 0) behind it.
constexpr int kRowWords = kTile / 4;
constexpr int kTileWords = kTile * kRowWords + kTile / 16 * 4;

__device__ inline int word_at(int row, int word) {
  return row * kRowWords + row / 16 * 4 + word;
}

// Turns words [r] of four rows into words of four columns.
__device__ inline void transpose_bytes(uint32_t (&w)[4]) {
  const uint32_t low_01 = __byte_perm(w[0], w[1], 0x5140);
  const uint32_t high_01 = __byte_perm(w[0], w[1], 0x7362);
  const uint32_t low_23 = __byte_perm(w[2], w[3], 0x5140);
  const uint32_t high_23 = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(low_01, low_23, 0x5410);
  w[1] = __byte_perm(low_01, low_23, 0x7632);
  w[2] = __byte_perm(high_01, high_23, 0x5410);
  w[3] = __byte_perm(high_01, high_23, 0x7632);
}

// Stores 4 columns of 16 rows, 16 bytes per store; word(r) has row r of them.
template <class Word>
__device__ void store_columns(const Word& word, int64_t column, int64_t row, int64_t M16, int64_t K,
                              uint8_t* quantized) {
  uint32_t columns[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t words[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) words[r] = word(i * 4 + r);
    transpose_bytes(words);
#pragma unroll
    for (int j = 0; j < 4; ++j) columns[j][i] = words[j];
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (column + j < K)
      store<4>(reinterpret_cast<uint32_t*>(quantized + (column + j) * M16 + row), columns[j]);
  }
}

// Stores one of the kThreads parts of a tile.
__device__ inline void store_transposed(const uint32_t* tile, int64_t row, int64_t column,
                                        int64_t M16, int64_t K, uint8_t* quantized,
                                        int part = static_cast<int>(threadIdx.x)) {
  const int rows = part % (kTile / 16) * 16;
  const int word = part / (kTile / 16);
  if (row + rows >= M16) return;
  store_columns([&](int r) { return tile[word_at(rows + r, word)]; }, column + word * 4, row + rows,
                M16, K, quantized);
}

// Takes the maximum of the tile, as an integer. REQUIRES: `most` is zero.
template <class T>
__device__ void take_maximum(const T (&values)[kRounds][kEach], uint32_t* most) {
  uint32_t mine = 0;
#pragma unroll
  for (int i = 0; i < kRounds; ++i) mine = max(mine, magnitude_of(values[i]));
  mine = warp_max(mine, 32);
  if (threadIdx.x % 32 == 0) atomicMax(most, mine);
}

// Makes the scales of a tile, and their inverses.
template <class Format, class T>
__device__ void make_scales(const QuantizedTile<T>& c, int64_t tile_row, int64_t tile_column,
                            const uint32_t* own, float (&scales)[kTile]) {
  const int thread = static_cast<int>(threadIdx.x);
  const ScaleAxis axis = c.scales.axis;
  const int64_t left =
      axis == ScaleAxis::kRow ? c.values.M - tile_row * kTile : c.values.K - tile_column * kTile;
  if (thread >= kTile || (axis != ScaleAxis::kTile && thread >= left)) return;
  const int place = axis == ScaleAxis::kTile ? 0 : thread;
  const int64_t at = c.scales.first_of(tile_row, tile_column) + place;
  const float amax = own != nullptr ? __uint_as_float(*own) : c.amax[at];
  scales[thread] = c.delayed.template scale_of<Format>(amax, c.power_of_two);
  if (c.inverse != nullptr && place == thread && c.scales.is_first(tile_row, tile_column))
    c.inverse[at] = 1.0F / scales[thread];
}

// Each block encodes a tile of x, whose quantized values reach the transposed matrix through shared
// memory. With kTakesMaxima the block holds the whole tile, to take its maximum and make its one
// scale.
template <bool kWhole, bool kTakesMaxima, class Format, class T>
__global__ void __launch_bounds__(kThreads, kTakesMaxima ? 2 : 3) encode_tiles(QuantizedTile<T> c) {
  constexpr int kHeld = kTakesMaxima ? kRounds : kRoundsAtOnce;
  __shared__ __align__(16) uint32_t tile[kTileWords];
  __shared__ uint32_t most;
  __shared__ __align__(16) float scales[kTile];
  const Values<T>& v = c.values;
  const int thread = static_cast<int>(threadIdx.x);
  const auto tiles = static_cast<unsigned>((v.K + kTile - 1) / kTile);
  const int64_t row = static_cast<int64_t>(blockIdx.x / tiles) * kTile;
  const int64_t column = static_cast<int64_t>(blockIdx.x % tiles) * kTile;
  const int own_row = thread / kRowThreads;
  const int own_column = thread % kRowThreads * kEach;
  const OwnRows<const T> own = own_rows(v, row + own_row, column + own_column);
  const OwnRows<uint8_t> quantized =
      own_rows(c.rows, v.M, v.K, row + own_row, column + own_column, v.K);
  uint32_t* const own_words = &tile[word_at(own_row, own_column / 4)];
  const ScaleAxis axis = c.scales.axis;
  float scale[kEach];
  uint32_t seen = 0;  // of `delayed.most`
#pragma unroll
  for (int round = 0; round < kRounds; round += kHeld) {
    T values[kHeld][kEach];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) load_row<kWhole>(own, (round + i) * kRowsAtOnce, values[i]);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) round_each(values[i], v.to_bf16);
    if (c.delayed.most != nullptr) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) seen = max(seen, magnitude_of(values[i]));
    }
    if constexpr (kTakesMaxima) {
      if (thread == 0) most = 0;
      __syncthreads();
      take_maximum(values, &most);
      __syncthreads();
    }
    if (round == 0) {
      make_scales<Format>(c, row / kTile, column / kTile, kTakesMaxima ? &most : nullptr, scales);
      __syncthreads();
      load<kEach>(&scales[own_column], scale);
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int r = (round + i) * kRowsAtOnce;
      if (axis == ScaleAxis::kRow) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) scale[j] = scales[own_row + r];
      }
      uint2 words = encode_each<Format>(values[i], [&](int j) { return scale[j]; });
      if (!own.has(r)) words = uint2{};  // zeros, though a scale may be NaN
      if (c.transposed != nullptr) *reinterpret_cast<uint2*>(own_words + word_at(r, 0)) = words;
      if (c.rows != nullptr) store_row<kWhole>(quantized, r, words);
    }
  }
  if (c.delayed.most != nullptr) keep_block_maximum(seen, c.delayed.most);
  if (c.transposed == nullptr) return;
  __syncthreads();
  store_transposed(tile, row, column, (v.M + 15) / 16 * 16, v.K, c.transposed);
}

// Encodes segments along rows, each under its own scale, without shared memory: 16 threads hold a
// segment. Four of them divide for one of four rounds each, as divisions cost more than exchanges.
template <bool kWhole, class Format, class T>
__global__ void __launch_bounds__(kThreads)
    encode_segments(Values<T> v, bool power_of_two, uint8_t* quantized, float* inverse) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto segments = static_cast<unsigned>((v.K + kTile - 1) / kTile);
  const int64_t segment = blockIdx.x % segments;
  const int64_t row = static_cast<int64_t>(blockIdx.x / segments) * kTile + thread / kRowThreads;
  const int64_t column = segment * kTile + thread % kRowThreads * kEach;
  const OwnRows<const T> own = own_rows(v, row, column);
  const OwnRows<uint8_t> into = own_rows(quantized, v.M, v.K, row, column, v.K);
  const int divided = thread % kRowThreads / kRoundsAtOnce;  // the round
  static_assert(kRoundsAtOnce == 4 && kRowThreads == 16);
#pragma unroll
  for (int round = 0; round < kRounds; round += kRoundsAtOnce) {
    T values[kRoundsAtOnce][kEach];
    uint32_t most[kRoundsAtOnce];
#pragma unroll
    for (int i = 0; i < kRoundsAtOnce; ++i)
      load_row<kWhole>(own, (round + i) * kRowsAtOnce, values[i]);
#pragma unroll
    for (int i = 0; i < kRoundsAtOnce; ++i) {
      round_each(values[i], v.to_bf16);
      most[i] = magnitude_of(values[i]);
    }
    const float scale = scale_of<Format>(__uint_as_float(greatest_of_four(most)), power_of_two);
    const int64_t r = row + (round + divided) * kRowsAtOnce;
    if (thread % 4 == 0 && r < v.M) inverse[segment * v.M + r] = 1.0F / scale;
#pragma unroll
    for (int i = 0; i < kRoundsAtOnce; ++i) {
      const float own_scale = of_word(scale, i);
      store_row<kWhole>(into, (round + i) * kRowsAtOnce,
                        encode_each<Format>(values[i], [&](int) { return own_scale; }));
    }
  }
}

template <class Format, class T>
void launch_segments(const Values<T>& v, bool power_of_two, uint8_t* quantized, float* inverse,
                     cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(tiles_of(v.M) * tiles_of(v.K));
  if (has_whole_rows(v.x, v.K) && detail::is_aligned(quantized)) {
    encode_segments<true, Format>
        <<<blocks, kThreads, 0, stream>>>(v, power_of_two, quantized, inverse);
  } else {
    encode_segments<false, Format>
        <<<blocks, kThreads, 0, stream>>>(v, power_of_two, quantized, inverse);
  }
  TOK_CUDA_LAUNCHED();
}

// Half a tile's columns: a block holds all values of a scale, and more blocks hide its barriers.
constexpr int kColumns = kTile / 2;
constexpr int kColumnThreads = kColumns / kEach;
constexpr int kColumnRows = kThreads / kColumnThreads;
constexpr int kColumnRounds = kTile / kColumnRows;

__device__ inline int column_word_at(int row, int word) {
  return row * (kColumns / 4) + row / 16 * 4 + word;
}

// Makes transposed quantized values of segments of columns, each under its own scale.
template <bool kWhole, class Format, class T>
__global__ void __launch_bounds__(kThreads)
    encode_columns(Values<T> v, bool power_of_two, uint8_t* quantized, float* inverse) {
  __shared__ __align__(16) uint32_t tile[kTile * kColumns / 4 + kTile / 16 * 4];
  __shared__ TileColumns<1, kThreads / 32, T, kColumnThreads> maxima;
  __shared__ __align__(16) float scales[kColumns];
  const int thread = static_cast<int>(threadIdx.x);
  const int own_row = thread / kColumnThreads;
  const int own_column = thread % kColumnThreads * kEach;
  const auto parts = static_cast<unsigned>((v.K + kColumns - 1) / kColumns);
  const int64_t segment = blockIdx.x / parts;
  const int64_t row = segment * kTile;
  const int64_t column = static_cast<int64_t>(blockIdx.x % parts) * kColumns;
  const OwnRows<const T> own = own_rows(v, row + own_row, column + own_column);
  T values[kColumnRounds][kEach];
#pragma unroll
  for (int i = 0; i < kColumnRounds; ++i) load_row<kWhole>(own, i * kColumnRows, values[i]);
  ColumnMaxima<kEach, T> most[1];
#pragma unroll
  for (int i = 0; i < kColumnRounds; ++i) {
    round_each(values[i], v.to_bf16);
    most[0].add(values[i]);
  }
  maxima.put(most);
  __syncthreads();
  if (thread < kColumns) {
    scales[thread] = scale_of<Format>(__uint_as_float(maxima.of(0, thread)), power_of_two);
    if (column + thread < v.K) inverse[segment * v.K + column + thread] = 1.0F / scales[thread];
  }
  __syncthreads();
  float scale[kEach];
  load<kEach>(&scales[own_column], scale);
#pragma unroll
  for (int i = 0; i < kColumnRounds; ++i) {
    uint2 words = encode_each<Format>(values[i], [&](int j) { return scale[j]; });
    if (!own.has(i * kColumnRows)) words = uint2{};  // zeros, though a scale may be NaN
    *reinterpret_cast<uint2*>(
        &tile[column_word_at(own_row, own_column / 4) + column_word_at(i * kColumnRows, 0)]) =
        words;
  }
  __syncthreads();
  const int64_t M16 = (v.M + 15) / 16 * 16;
  const int rows = thread % (kTile / 16) * 16;
  const int word = thread / (kTile / 16);
  if (word < kColumns / 4 && row + rows < M16) {
    store_columns([&](int r) { return tile[column_word_at(rows + r, word)]; }, column + word * 4,
                  row + rows, M16, v.K, quantized);
  }
}

template <class Format, class T>
void launch_columns(const Values<T>& v, bool power_of_two, uint8_t* quantized, float* inverse,
                    cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(tiles_of(v.M) * ((v.K + kColumns - 1) / kColumns));
  if (has_whole_rows(v.x, v.K)) {
    encode_columns<true, Format>
        <<<blocks, kThreads, 0, stream>>>(v, power_of_two, quantized, inverse);
  } else {
    encode_columns<false, Format>
        <<<blocks, kThreads, 0, stream>>>(v, power_of_two, quantized, inverse);
  }
  TOK_CUDA_LAUNCHED();
}

template <bool kTakesMaxima, class Format, class T>
void launch_tiles(const QuantizedTile<T>& c, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(tiles_of(c.values.M) * tiles_of(c.values.K));
  if (has_whole_rows(c.values.x, c.values.K) && detail::is_aligned(c.rows)) {
    encode_tiles<true, kTakesMaxima, Format><<<blocks, kThreads, 0, stream>>>(c);
  } else {
    encode_tiles<false, kTakesMaxima, Format><<<blocks, kThreads, 0, stream>>>(c);
  }
  TOK_CUDA_LAUNCHED();
}

}  // namespace tokamak::gpu
