// Maxima and codes of the gradients of packed gates and of the product of the gates, tile by tile,
// of which no value is stored.
#pragma once

#include "tokamak/ops/elementwise/swiglu_gpu.cuh"
#include "tokamak/ops/float8/encode_gpu.cuh"

namespace tokamak::gpu {

/// Gate and up, F columns each, side by side in rows; dy [M, F].
template <class T>
struct Gates {
  const T* both;
  const T* dy;
  int64_t M, F;
};

/// Where maxima of a matrix go; null where they are not wanted.
struct TileMaxima {
  uint32_t* all = nullptr;
  uint32_t* rows = nullptr;
  uint32_t* columns = nullptr;
};

/// Codes of a matrix in one layout: under one scale, or under one for each row, or column.
struct CodesUnderScales {
  uint8_t* codes = nullptr;
  const float* amax = nullptr;
  float* inverse = nullptr;
  bool is_tensor = true;
  bool power_of_two = false;

  template <class Format>
  __device__ float scale_at(int64_t i) const {
    return scale_of<Format>(amax[is_tensor ? 0 : i], power_of_two);
  }

  template <class Format>
  __device__ void store_inverse(int64_t i) const {
    if (!is_tensor || i == 0) inverse[is_tensor ? 0 : i] = 1.0F / scale_at<Format>(i);
  }
};

/// A matrix of values, of which codes lie as the values do and transposed; null codes are not made.
struct TileLayouts {
  CodesUnderScales rows, transposed;
};

// A thread's part of a round: 8 neighbours of gate, up and dy, then of dgate, dup and y.
constexpr int kGateParts = 3;

template <bool kWhole, class T>
__device__ inline void load_gates(const Gates<T>& g, int64_t row, int64_t column,
                                  T (&into)[kGateParts][kEach]) {
  const T* const gate = g.both + row * 2 * g.F + column;
  const T* const from[kGateParts] = {gate, gate + g.F, g.dy + row * g.F + column};
  const bool is_inside = row < g.M && column < g.F;
#pragma unroll
  for (int p = 0; p < kGateParts; ++p) {
    if constexpr (kWhole) {
      if (is_inside) {
        load<kEach>(from[p], into[p]);
        continue;
      }
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      into[p][j] = !kWhole && row < g.M && column + j < g.F ? from[p][j] : T(0.0F);
  }
}

// Takes the maxima of a tile of dgate and dup, and of y.
template <bool kWhole, bool kHasAxes, class T>
__global__ void __launch_bounds__(kThreads, kHasAxes ? 3 : 4)
    gate_maxima(Gates<T> g, TileMaxima d, TileMaxima y) {
  constexpr int kAtOnce = 2;
  __shared__ TileColumns<kHasAxes ? kGateParts : 1, kThreads / 32, T> columns;
  const int thread = static_cast<int>(threadIdx.x);
  const auto tiles = static_cast<unsigned>((g.F + kTile - 1) / kTile);
  const int64_t row = static_cast<int64_t>(blockIdx.x / tiles) * kTile + thread / kRowThreads;
  const int own_column = thread % kRowThreads * kEach;
  const int64_t column = static_cast<int64_t>(blockIdx.x % tiles) * kTile + own_column;
  uint32_t most[2] = {};
  ColumnMaxima<kEach, T> own[kGateParts];
#pragma unroll 1
  for (int round = 0; round < kRounds; round += kAtOnce) {
    T values[kAtOnce][kGateParts][kEach];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      load_gates<kWhole>(g, row + (round + i) * kRowsAtOnce, column, values[i]);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t r = row + (round + i) * kRowsAtOnce;
      T(&v)[kGateParts][kEach] = values[i];
      differentiate_gates(v[0], v[1], v[2]);
      const uint32_t rows[2] = {max(magnitude_of(v[0]), magnitude_of(v[1])), magnitude_of(v[2])};
      most[0] = max(most[0], rows[0]);
      most[1] = max(most[1], rows[1]);
      if constexpr (kHasAxes) {
#pragma unroll
        for (int p = 0; p < kGateParts; ++p) own[p].add(v[p]);
        uint32_t* const into[2] = {d.rows, y.rows};
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          if (into[m] == nullptr) continue;
          const uint32_t of_row = warp_max(rows[m], kRowThreads);
          if (thread % kRowThreads == 0 && r < g.M) atomicMax(into[m] + r, of_row);
        }
      }
    }
  }
  if constexpr (kHasAxes) {
    columns.put(own);
    __syncthreads();
    const int64_t first = column - own_column;
    for (int i = thread; i < kGateParts * kTile; i += kThreads) {
      const int p = i / kTile;
      const int64_t c = first + i % kTile;
      uint32_t* const into = p == 2 ? y.columns : d.columns;
      if (into != nullptr && c < g.F)
        atomicMax(into + (p == 1 ? g.F : 0) + c, columns.of(p, i % kTile));
    }
  }
  if (y.all != nullptr) {
    const uint32_t of_warp = warp_max(most[1], 32);
    if (thread % 32 == 0) atomicMax(y.all, of_warp);
  }
  if (d.all != nullptr) block_max(most[0], d.all);
}

// Makes the scales of a tile's rows and columns; one of each where scales are of tensors.
template <bool kHasAxes, class Format, class T>
__device__ void make_gate_scales(const Gates<T>& g, const TileLayouts& d, const TileLayouts& y,
                                 int64_t first_row, int64_t first_column,
                                 float (&of_rows)[2][kHasAxes ? kTile : 1],
                                 float (&of_columns)[kGateParts][kHasAxes ? kTile : 1]) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= (kHasAxes ? kTile : 1)) return;
  const int64_t row = min(first_row + i, g.M - 1);
  const int64_t column = min(first_column + i, g.F - 1);
  if (d.rows.codes != nullptr) of_rows[0][i] = d.rows.scale_at<Format>(row);
  if (y.rows.codes != nullptr) of_rows[1][i] = y.rows.scale_at<E4M3>(row);
  if (d.transposed.codes != nullptr) {
    of_columns[0][i] = d.transposed.scale_at<Format>(column);
    of_columns[1][i] = d.transposed.scale_at<Format>(g.F + column);
  }
  if (y.transposed.codes != nullptr) of_columns[2][i] = y.transposed.scale_at<E4M3>(column);
}

// Makes the codes of a tile of dgate and dup, and of y.
template <bool kWhole, bool kHasAxes, class Format, class T>
__global__ void __launch_bounds__(kThreads, 3)
    gate_codes(Gates<T> g, TileLayouts d, TileLayouts y) {
  constexpr int kAtOnce = 2;
  extern __shared__ __align__(16) uint32_t words[];
  const int thread = static_cast<int>(threadIdx.x);
  const auto tiles = static_cast<unsigned>((g.F + kTile - 1) / kTile);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x / tiles) * kTile;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x % tiles) * kTile;
  const int own_row = thread / kRowThreads;
  const int own_column = thread % kRowThreads * kEach;
  const int64_t column = first_column + own_column;
  const int64_t left = g.F - column;
  const bool encodes_once = !kHasAxes && d.rows.amax == d.transposed.amax &&
                            d.rows.power_of_two == d.transposed.power_of_two;
  __shared__ float of_rows[2][kHasAxes ? kTile : 1];
  __shared__ __align__(16) float of_columns[kGateParts][kHasAxes ? kTile : 1];
  make_gate_scales<kHasAxes, Format>(g, d, y, first_row, first_column, of_rows, of_columns);
  __syncthreads();
#pragma unroll 1
  for (int round = 0; round < kRounds; round += kAtOnce) {
    T values[kAtOnce][kGateParts][kEach];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      load_gates<kWhole>(g, first_row + (round + i) * kRowsAtOnce + own_row, column, values[i]);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int r = (round + i) * kRowsAtOnce + own_row;
      const int64_t row = first_row + r;
      const bool is_inside = row < g.M;
      T(&v)[kGateParts][kEach] = values[i];
      differentiate_gates(v[0], v[1], v[2]);
#pragma unroll
      for (int p = 0; p < kGateParts; ++p) {
        const TileLayouts& of = p == 2 ? y : d;
        using Own = Format;
        const auto encode = [&](const auto& scale) {
          return p == 2 ? encode_each<E4M3>(v[p], false, scale)
                        : encode_each<Own>(v[p], false, scale);
        };
        uint2 made{};
        if (of.rows.codes != nullptr) {
          const float scale = of_rows[p / 2][kHasAxes ? r : 0];
          const int64_t width = p == 2 ? g.F : 2 * g.F;
          made = encode([&](int) { return scale; });
          if (is_inside)
            store_each<kWhole>(made, of.rows.codes + row * width + (p == 1 ? g.F : 0) + column,
                               left);
        }
        if (of.transposed.codes == nullptr) continue;
        if constexpr (kHasAxes) {
          float scales[kEach];
          load<kEach>(&of_columns[p][own_column], scales);
          made = encode([&](int j) { return scales[j]; });
        } else if (p == 2 || !encodes_once) {
          made = encode([&](int) { return of_columns[p][0]; });
        }
        if (!is_inside) made = uint2{};  // zeros, though a scale may be NaN
        *reinterpret_cast<uint2*>(&words[p * kTileWords + word_at(r, own_column / 4)]) = made;
      }
    }
  }
  // The first tiles of rows and of columns also store the inverse scales.
  if (thread < kTile) {
    const int64_t r = first_row + thread;
    const int64_t c = first_column + thread;
    if (first_column == 0 && r < g.M) {
      if (d.rows.codes != nullptr) d.rows.store_inverse<Format>(r);
      if (y.rows.codes != nullptr) y.rows.store_inverse<E4M3>(r);
    }
    if (first_row == 0 && c < g.F) {
      if (d.transposed.codes != nullptr) {
        d.transposed.store_inverse<Format>(c);
        d.transposed.store_inverse<Format>(g.F + c);
      }
      if (y.transposed.codes != nullptr) y.transposed.store_inverse<E4M3>(c);
    }
  }
  __syncthreads();
  const int64_t M16 = (g.M + 15) / 16 * 16;
#pragma unroll
  for (int p = 0; p < kGateParts; ++p) {
    uint8_t* const codes = p == 2 ? y.transposed.codes : d.transposed.codes;
    if (codes == nullptr) continue;
    store_transposed(words + p * kTileWords, first_row, first_column, M16, g.F,
                     codes + (p == 1 ? g.F * M16 : 0));
  }
}

constexpr int kGateTileBytes = kGateParts * kTileWords * static_cast<int>(sizeof(uint32_t));

template <class T>
bool has_whole_rows(const Gates<T>& g) {
  return has_whole_rows(g.both, g.F) && detail::is_aligned(g.dy);
}

template <class T>
void launch_gate_maxima(const Gates<T>& g, const TileMaxima& d, const TileMaxima& y,
                        cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(tiles_of(g.M) * tiles_of(g.F));
  const bool has_axes =
      d.rows != nullptr || d.columns != nullptr || y.rows != nullptr || y.columns != nullptr;
  const auto kernel = has_whole_rows(g)
                          ? has_axes ? gate_maxima<true, true, T> : gate_maxima<true, false, T>
                      : has_axes ? gate_maxima<false, true, T>
                                 : gate_maxima<false, false, T>;
  kernel<<<blocks, kThreads, 0, stream>>>(g, d, y);
  TOK_CUDA_LAUNCHED();
}

template <class T>
using GateCodes = void (*)(Gates<T>, TileLayouts, TileLayouts);

/// Returns the kernel for codes under scales of rows or columns, or only of tensors, which may use
/// the shared memory that it needs.
template <class Format, class T>
GateCodes<T> gate_codes_of(bool is_whole, bool has_axes) {
  const auto kernel =
      is_whole   ? has_axes ? gate_codes<true, true, Format, T> : gate_codes<true, false, Format, T>
        : has_axes ? gate_codes<false, true, Format, T>
                 : gate_codes<false, false, Format, T>;
  TOK_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                cudaFuncAttributeMaxDynamicSharedMemorySize, kGateTileBytes));
  return kernel;
}

}  // namespace tokamak::gpu
