// Tiles of a matrix of values, in which kernels take maxima and quantize.
#pragma once

#include "tokamak/gpu/amax.cuh"
#include "tokamak/ops/float8/quantize.h"

namespace tokamak::gpu {

/// x in tiles of 128 x 128, the edge of a block of scales: a tile has one scale, or one for each of
/// its rows or columns. A thread takes 8 neighbours of every 16th row.
constexpr int kTile = static_cast<int>(kScaleBlock);
constexpr int kEach = 8;
constexpr int kRowThreads = kTile / kEach;
constexpr int kRowsAtOnce = kThreads / kRowThreads;
constexpr int kRounds = kTile / kRowsAtOnce;
constexpr int kRoundsAtOnce = 4;  ///< whose values are in flight to a thread

enum class ScaleAxis : uint8_t { kTile, kRow, kColumn };

/// The places of the scales of x's tiles.
struct TileScales {
  ScaleAxis axis = ScaleAxis::kTile;
  int64_t per_tile_row = 0;
  int64_t per_tile_column = 0;

  __device__ int64_t first_of(int64_t tile_row, int64_t tile_column) const {
    return tile_row * per_tile_row + tile_column * per_tile_column;
  }

  /// Whether this is the first of the tiles that share scales.
  __device__ bool is_first(int64_t tile_row, int64_t tile_column) const {
    return (per_tile_row != 0 || tile_row == 0) && (per_tile_column != 0 || tile_column == 0);
  }
};

inline TileScales scales_of(ScaleGrid grid, bool transposed, int64_t M, int64_t K) {
  if (grid == ScaleGrid::kTensor) return {};
  const int64_t rows = transposed ? K : M;
  const int64_t columns = transposed ? padded_tokens(M) : K;
  TileScales scales;
  if (grid != ScaleGrid::kBlocks) scales.axis = transposed ? ScaleAxis::kColumn : ScaleAxis::kRow;
  const int64_t down = scale_index(grid, rows, columns, kTile, 0);
  const int64_t right = scale_index(grid, rows, columns, 0, kTile);
  scales.per_tile_row = transposed ? right : down;
  scales.per_tile_column = transposed ? down : right;
  return scales;
}

inline int64_t tiles_of(int64_t n) {
  return (n + kTile - 1) / kTile;
}

template <class T>
struct Values {
  const T* x;
  int64_t M, K;
  bool to_bf16;
};

template <class T>
__device__ inline float value_of(T x, bool to_bf16) {
  const float value = to<float>(x);
  return to_bf16 && sizeof(T) > 2 ? to<float>(to<__nv_bfloat16>(value)) : value;
}

/// Rounds values of more digits to bf16, if asked for.
template <int K, class T>
__device__ inline void round_each(T (&x)[K], bool to_bf16) {
  if constexpr (sizeof(T) > 2) {
#pragma unroll
    for (int k = 0; k < K; ++k) x[k] = to<T>(value_of(x[k], to_bf16));
  }
}

/// What a thread takes of a tile: 8 neighbours in rows that are counted from its first one. A row
/// of constant number costs one instruction, an index of 64 bits some 15.
template <class T>
struct OwnRows {
  T* first = nullptr;
  uint32_t stride = 0;  ///< bytes from one row to the next
  int rows = 0;         ///< that the matrix has from the first one on, if any; 0 without columns
  int columns = 0;      ///< of the 8 that the matrix has, if any

  __device__ bool has(int row) const { return row < rows; }

  __device__ T* at(int row) const {
    const auto bytes = static_cast<uint64_t>(stride) * static_cast<uint32_t>(row);
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(first) + bytes);
  }
};

/// Returns what the thread takes whose first neighbours are at (row, column) of M x K values, whose
/// rows are `width` apart.
template <class T>
__device__ inline OwnRows<T> own_rows(T* x, int64_t M, int64_t K, int64_t row, int64_t column,
                                      int64_t width) {
  const auto at_most = [](int64_t left, int most) {
    return left < most ? static_cast<int>(left) : most;
  };
  const int columns = at_most(K - column, kEach);
  return {x + row * width + column, static_cast<uint32_t>(width * static_cast<int64_t>(sizeof(T))),
          columns > 0 ? at_most(M - row, kTile) : 0, columns};
}

template <class T>
__device__ inline OwnRows<const T> own_rows(const Values<T>& v, int64_t row, int64_t column) {
  return own_rows(v.x, v.M, v.K, row, column, v.K);
}

/// Loads neighbours of one row, 0 outside of the matrix; with kWhole by accesses of 16 bytes.
template <bool kWhole, class T>
__device__ inline void load_row(const OwnRows<const T>& own, int row, T (&into)[kEach]) {
  if constexpr (kWhole) {
    uint4 words[sizeof(into) / 16];
#pragma unroll
    for (uint4& word : words) word = uint4{};
    if (own.has(row)) load<sizeof(into) / 16>(reinterpret_cast<const uint4*>(own.at(row)), words);
    memcpy(into, words, sizeof(into));
  } else {
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      into[j] = own.has(row) && j < own.columns ? own.at(row)[j] : T(0.0F);
  }
}

/// Stores quantized values of one row, those that lie within the matrix.
template <bool kWhole>
__device__ inline void store_row(const OwnRows<uint8_t>& own, int row, uint2 words) {
  if (!own.has(row)) return;
  if constexpr (kWhole) {
    *reinterpret_cast<uint2*>(own.at(row)) = words;
  } else {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (j < own.columns)
        own.at(row)[j] = static_cast<uint8_t>((j < 4 ? words.x : words.y) >> (j % 4 * 8));
    }
  }
}

/// Whether rows of x start on 16-byte addresses.
template <class T>
bool has_whole_rows(const T* x, int64_t K) {
  return K % kEach == 0 && detail::is_aligned(x);
}

// Copies 16 bytes into shared memory without registers; zeros where `is_inside` is false.
__device__ inline void copy_ahead(void* into, const void* from, bool is_inside) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(into))),
               "l"(__cvta_generic_to_global(from)), "r"(is_inside ? 16 : 0)
               : "memory");
#endif
}

// Returns once the thread's copies are there.
__device__ inline void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/// Maxima of the columns of a tile of each part, which a block of kWarps warps takes. kAcross
/// threads share a row.
template <int kParts, int kWarps, class T, int kAcross = kRowThreads>
struct TileColumns {
  using Own = ColumnMaxima<kEach, T>;
  uint32_t words[kWarps][kParts][kAcross * Own::kWords];

  /// Puts what a thread has taken there; between this and of() the kernel has a barrier.
  __device__ void put(const Own (&own)[kParts]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
#pragma unroll
      for (int w = 0; w < Own::kWords; ++w) {
        uint32_t most = own[p].most[w];
#pragma unroll
        for (int d = kAcross; d < 32; d *= 2)
          most = Own::merge(most, __shfl_xor_sync(0xFFFFFFFFU, most, d));
        if (lane < kAcross) words[warp][p][lane * Own::kWords + w] = most;
      }
    }
  }

  /// Returns the greatest magnitude of a column.
  __device__ uint32_t of(int p, int column) const {
    constexpr int kColumns = kEach / Own::kWords;  // of a word
    uint32_t most = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) most = Own::merge(most, words[w][p][column / kColumns]);
    if constexpr (!Own::kPacks) return most;
    return column % 2 == 0 ? most << 16U : most & 0xFFFF0000U;
  }
};

}  // namespace tokamak::gpu
