// Maxima and quantized values of the gradients of packed gates and of GELU, tile by tile, of which
// no value needs to be stored.
#pragma once

#include "tokamak/ops/elementwise/gelu_gpu.cuh"
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

/// Quantized values of a matrix in one layout: under one scale, which may be a delayed one, or
/// under one for each row, or column.
struct QuantizedUnderScales {
  uint8_t* values = nullptr;
  const float* amax = nullptr;
  float* inverse = nullptr;
  bool is_tensor = true;
  bool power_of_two = false;
  Delayed delayed = {};

  template <class Format>
  __device__ float scale_at(int64_t i) const {
    return delayed.template scale_of<Format>(amax[is_tensor ? 0 : i], power_of_two);
  }

  template <class Format>
  __device__ void store_inverse(int64_t i) const {
    if (!is_tensor || i == 0) inverse[is_tensor ? 0 : i] = 1.0F / scale_at<Format>(i);
  }
};

/// A matrix of values, of which quantized values lie as the values do and transposed; null
/// quantized values are not made. `most` is where its greatest magnitude goes, if that is wanted.
struct TileLayouts {
  QuantizedUnderScales rows, transposed;
  uint32_t* most = nullptr;
};

// A thread's part of a round: 8 neighbours of gate, up and dy, then of dgate, dup and y.
constexpr int kGateParts = 3;

/// dgate, dup and y of packed gates. Of a source, the last part is y and the others lie side by
/// side; own() returns what a thread takes of it.
template <class T>
struct GateSource {
  using Element = T;
  static constexpr int kParts = kGateParts;
  static constexpr int kE4M3Part = 2;     ///< y, whatever the format of gradients
  static constexpr bool kHasAxes = true;  ///< scales may be of rows and columns
  Gates<T> g;

  struct Own {
    OwnRows<const T> parts[kParts];

    /// Brings 8 neighbours of an input into shared memory; zeros where the matrix has no row.
    __device__ void bring(int p, int row, T* into) const {
      copy_ahead(into, parts[p].at(row), parts[p].has(row));
    }

    template <bool kWhole>
    __device__ void load(int row, T (&into)[kParts][kEach]) const {
#pragma unroll
      for (int p = 0; p < kParts; ++p) load_row<kWhole>(parts[p], row, into[p]);
    }

    template <bool kWhole>
    __device__ void store(const T (&)[kEach], int) const {}
  };

  __device__ int64_t rows() const {
    return g.M;
  }

  __device__ int64_t columns() const {
    return g.F;
  }

  __device__ Own own(int64_t row, int64_t column) const {
    return {{own_rows(g.both, g.M, g.F, row, column, 2 * g.F),
             own_rows(g.both + g.F, g.M, g.F, row, column, 2 * g.F),
             own_rows(g.dy, g.M, g.F, row, column, g.F)}};
  }

  static __device__ void compute(T (&v)[kParts][kEach]) {
    differentiate_gates(v[0], v[1], v[2]);
  }
};

/// dx and y of GELU. dx is stored where `dx` is not null.
template <class T, class Form>
struct GeluSource {
  using Element = T;
  static constexpr int kParts = 2;
  static constexpr int kE4M3Part = 1;
  static constexpr bool kHasAxes = false;
  const T* x;
  const T* dy;
  T* dx;
  int64_t M, F;

  struct Own {
    OwnRows<const T> parts[kParts];
    OwnRows<T> dx;
    bool stores;

    template <bool kWhole>
    __device__ void load(int row, T (&into)[kParts][kEach]) const {
#pragma unroll
      for (int p = 0; p < kParts; ++p) load_row<kWhole>(parts[p], row, into[p]);
    }

    template <bool kWhole>
    __device__ void store(const T (&v)[kEach], int row) const {
      if (!stores || !dx.has(row)) return;
      if constexpr (kWhole) {
        gpu::store<kEach>(dx.at(row), v);
      } else {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          if (j < dx.columns) dx.at(row)[j] = v[j];
        }
      }
    }
  };

  __device__ int64_t rows() const {
    return M;
  }

  __device__ int64_t columns() const {
    return F;
  }

  __device__ Own own(int64_t row, int64_t column) const {
    return {{own_rows(x, M, F, row, column, F), own_rows(dy, M, F, row, column, F)},
            own_rows(dx, M, F, row, column, F),
            dx != nullptr};
  }

  static __device__ void compute(T (&v)[kParts][kEach]) {
    differentiate_gelu<true, Form>(v[0], v[1]);
  }
};

template <class Source, class T>
__device__ inline uint32_t greatest_gradient(const T (&v)[Source::kParts][kEach]) {
  uint32_t most = magnitude_of(v[0]);
  if constexpr (Source::kParts > 2) most = max(most, magnitude_of(v[1]));
  return most;
}

// Takes the maxima of a tile of the gradients, and of y.
template <bool kWhole, bool kHasAxes, class Source>
__global__ void __launch_bounds__(kThreads, kHasAxes ? 3 : 4)
    tile_maxima(Source source, TileMaxima d, TileMaxima y) {
  using T = typename Source::Element;
  constexpr int kParts = Source::kParts;
  const int64_t M = source.rows();
  const int64_t F = source.columns();
  constexpr int kAtOnce = 2;
  __shared__ TileColumns<kHasAxes ? kParts : 1, kThreads / 32, T> columns;
  const int thread = static_cast<int>(threadIdx.x);
  const auto tiles = static_cast<unsigned>((F + kTile - 1) / kTile);
  const int64_t row = static_cast<int64_t>(blockIdx.x / tiles) * kTile + thread / kRowThreads;
  const int own_column = thread % kRowThreads * kEach;
  const int64_t column = static_cast<int64_t>(blockIdx.x % tiles) * kTile + own_column;
  const typename Source::Own own = source.own(row, column);
  uint32_t most[2] = {};
  ColumnMaxima<kEach, T> own_maxima[kParts];
#pragma unroll 1
  for (int round = 0; round < kRounds; round += kAtOnce) {
    T values[kAtOnce][kParts][kEach];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      own.template load<kWhole>((round + i) * kRowsAtOnce, values[i]);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t r = row + (round + i) * kRowsAtOnce;
      T(&v)[kParts][kEach] = values[i];
      Source::compute(v);
      const uint32_t rows[2] = {greatest_gradient<Source>(v), magnitude_of(v[kParts - 1])};
      most[0] = max(most[0], rows[0]);
      most[1] = max(most[1], rows[1]);
      if constexpr (kHasAxes) {
#pragma unroll
        for (int p = 0; p < kParts; ++p) own_maxima[p].add(v[p]);
        uint32_t* const into[2] = {d.rows, y.rows};
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          if (into[m] == nullptr) continue;
          const uint32_t of_row = warp_max(rows[m], kRowThreads);
          if (thread % kRowThreads == 0 && r < M) atomicMax(into[m] + r, of_row);
        }
      }
    }
  }
  if constexpr (kHasAxes) {
    columns.put(own_maxima);
    __syncthreads();
    const int64_t first = column - own_column;
    for (int i = thread; i < kParts * kTile; i += kThreads) {
      const int p = i / kTile;
      const int64_t c = first + i % kTile;
      uint32_t* const into = p == kParts - 1 ? y.columns : d.columns;
      if (into != nullptr && c < F)
        atomicMax(into + (p == kParts - 1 ? 0 : p * F) + c, columns.of(p, i % kTile));
    }
  }
  if (y.all != nullptr) {
    const uint32_t of_warp = warp_max(most[1], 32);
    if (thread % 32 == 0) atomicMax(y.all, of_warp);
  }
  if (d.all != nullptr) block_max(most[0], d.all);
}

// Makes the scales of a tile's rows and columns; one of each where scales are of tensors.
template <bool kHasAxes, class Format, class Source>
__device__ void make_tile_scales(const Source& source, const TileLayouts& d, const TileLayouts& y,
                                 int64_t first_row, int64_t first_column,
                                 float (&of_rows)[2][kHasAxes ? kTile : 1],
                                 float (&of_columns)[Source::kParts][kHasAxes ? kTile : 1]) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= (kHasAxes ? kTile : 1)) return;
  constexpr int kLast = Source::kParts - 1;
  const int64_t F = source.columns();
  const int64_t row = min(first_row + i, source.rows() - 1);
  const int64_t column = min(first_column + i, F - 1);
  if (d.rows.values != nullptr) of_rows[0][i] = d.rows.scale_at<Format>(row);
  if (y.rows.values != nullptr) of_rows[1][i] = y.rows.scale_at<E4M3>(row);
  if (d.transposed.values != nullptr) {
#pragma unroll
    for (int p = 0; p < kLast; ++p)
      of_columns[p][i] = d.transposed.scale_at<Format>(p * F + column);
  }
  if (y.transposed.values != nullptr) of_columns[kLast][i] = y.transposed.scale_at<E4M3>(column);
}

// Stores the inverse scales, as the first tiles of rows and of columns do.
template <class Format, class Source>
__device__ void store_inverse_scales(const Source& source, const TileLayouts& d,
                                     const TileLayouts& y, int64_t first_row,
                                     int64_t first_column) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= kTile) return;
  const int64_t F = source.columns();
  const int64_t r = first_row + thread;
  const int64_t c = first_column + thread;
  if (first_column == 0 && r < source.rows()) {
    if (d.rows.values != nullptr) d.rows.store_inverse<Format>(r);
    if (y.rows.values != nullptr) y.rows.store_inverse<E4M3>(r);
  }
  if (first_row == 0 && c < F) {
    if (d.transposed.values != nullptr) {
#pragma unroll
      for (int p = 0; p < Source::kParts - 1; ++p) d.transposed.store_inverse<Format>(p * F + c);
    }
    if (y.transposed.values != nullptr) y.transposed.store_inverse<E4M3>(c);
  }
}

// Stores what `words` hold of each part.
template <class Source>
__device__ void store_all_transposed(const Source& source, const uint32_t* words,
                                     const TileLayouts& d, const TileLayouts& y, int64_t first_row,
                                     int64_t first_column) {
  constexpr int kLast = Source::kParts - 1;
  const int64_t F = source.columns();
  const int64_t M16 = (source.rows() + 15) / 16 * 16;
#pragma unroll
  for (int p = 0; p < Source::kParts; ++p) {
    uint8_t* const quantized = p == kLast ? y.transposed.values : d.transposed.values;
    if (quantized == nullptr) continue;
    store_transposed(words + p * kTileWords, first_row, first_column, M16, F,
                     quantized + (p == kLast ? 0 : p * F * M16));
  }
}

// Quantizes a tile of the gradients, and of y.
template <bool kWhole, bool kHasAxes, class Format, class Source>
__global__ void __launch_bounds__(kThreads, 3)
    quantize_tile(Source source, TileLayouts d, TileLayouts y) {
  using T = typename Source::Element;
  constexpr int kParts = Source::kParts;
  constexpr int kLast = kParts - 1;
  const int64_t M = source.rows();
  const int64_t F = source.columns();
  constexpr int kAtOnce = 2;
  extern __shared__ __align__(16) uint32_t words[];
  const int thread = static_cast<int>(threadIdx.x);
  const auto tiles = static_cast<unsigned>((F + kTile - 1) / kTile);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x / tiles) * kTile;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x % tiles) * kTile;
  const int own_row = thread / kRowThreads;
  const int own_column = thread % kRowThreads * kEach;
  const typename Source::Own own = source.own(first_row + own_row, first_column + own_column);
  const auto own_quantized = [&](const QuantizedUnderScales& of, int64_t width) {
    return own_rows(of.values, M, F, first_row + own_row, first_column + own_column, width);
  };
  const OwnRows<uint8_t> d_quantized = own_quantized(d.rows, kLast * F);
  const OwnRows<uint8_t> y_quantized = own_quantized(y.rows, F);
  const bool encodes_once = !kHasAxes && d.rows.amax == d.transposed.amax &&
                            d.rows.power_of_two == d.transposed.power_of_two;
  __shared__ float of_rows[2][kHasAxes ? kTile : 1];
  __shared__ __align__(16) float of_columns[kParts][kHasAxes ? kTile : 1];
  make_tile_scales<kHasAxes, Format>(source, d, y, first_row, first_column, of_rows, of_columns);
  __syncthreads();
  uint32_t most[2] = {};
#pragma unroll 1
  for (int round = 0; round < kRounds; round += kAtOnce) {
    T values[kAtOnce][kParts][kEach];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      own.template load<kWhole>((round + i) * kRowsAtOnce, values[i]);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int below = (round + i) * kRowsAtOnce;
      const int r = own_row + below;
      T(&v)[kParts][kEach] = values[i];
      Source::compute(v);
      own.template store<kWhole>(v[0], below);
      if (d.most != nullptr) most[0] = max(most[0], greatest_gradient<Source>(v));
      if (y.most != nullptr) most[1] = max(most[1], magnitude_of(v[kLast]));
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        const TileLayouts& of = p == kLast ? y : d;
        using Own = Format;
        const auto encode = [&](const auto& scale) {
          return p == kLast ? encode_each<E4M3>(v[p], scale) : encode_each<Own>(v[p], scale);
        };
        uint2 made{};
        if (of.rows.values != nullptr) {
          const float scale = of_rows[p / kLast][kHasAxes ? r : 0];
          OwnRows<uint8_t> into = p == kLast ? y_quantized : d_quantized;
          if (p != kLast) into.first += p * F;
          made = encode([&](int) { return scale; });
          store_row<kWhole>(into, below, made);
        }
        if (of.transposed.values == nullptr) continue;
        if constexpr (kHasAxes) {
          float scales[kEach];
          load<kEach>(&of_columns[p][own_column], scales);
          made = encode([&](int j) { return scales[j]; });
        } else if (p == kLast || !encodes_once) {
          made = encode([&](int) { return of_columns[p][0]; });
        }
        if (first_row + r >= M) made = uint2{};  // zeros, though a scale may be NaN
        *reinterpret_cast<uint2*>(&words[p * kTileWords + word_at(r, own_column / 4)]) = made;
      }
    }
  }
  store_inverse_scales<Format>(source, d, y, first_row, first_column);
  if (y.most != nullptr) {
    const uint32_t of_warp = warp_max(most[1], 32);
    if (thread % 32 == 0) atomicMax(y.most, of_warp);
  }
  if (d.most != nullptr) block_max(most[0], d.most);
  __syncthreads();
  store_all_transposed(source, words, d, y, first_row, first_column);
}

template <class Source>
constexpr int kTileBytes = Source::kParts* kTileWords* static_cast<int>(sizeof(uint32_t));

template <class T>
bool has_whole_rows(const Gates<T>& g) {
  return has_whole_rows(g.both, g.F) && detail::is_aligned(g.dy);
}

// Elements of a source one by one, as launch_gated_max takes them.
template <class Source>
struct SourceMagnitudes {
  using Element = typename Source::Element;
  Source source;
  bool of_y = false;  ///< and not of the gradients

  template <int K>
  __device__ uint32_t operator()(int64_t i) const {
    constexpr int kParts = Source::kParts;
    uint32_t most = 0;
    for (int k = 0; k < K; ++k) {
      Element v[kParts][kEach];
      const int64_t row = (i + k) / source.columns();
      source.own(row, i + k - row * source.columns()).template load<false>(0, v);
      Source::compute(v);
      const auto greatest = [&](int p) { return magnitude_of(to<float>(v[p][0])); };
      if (of_y) {
        most = max(most, greatest(kParts - 1));
        continue;
      }
#pragma unroll
      for (int p = 0; p + 1 < kParts; ++p) most = max(most, greatest(p));
    }
    return most;
  }
};

template <class Source>
void launch_tile_maxima(const Source& source, bool is_packed, int64_t M, int64_t F,
                        const TileMaxima& d, const TileMaxima& y, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(tiles_of(M) * tiles_of(F));
  const bool has_axes =
      d.rows != nullptr || d.columns != nullptr || y.rows != nullptr || y.columns != nullptr;
  const auto kernel =
      is_packed  ? has_axes ? tile_maxima<true, true, Source> : tile_maxima<true, false, Source>
       : has_axes ? tile_maxima<false, true, Source>
                 : tile_maxima<false, false, Source>;
  kernel<<<blocks, kThreads, 0, stream>>>(source, d, y);
  TOK_CUDA_LAUNCHED();
}

template <class Source>
using TileEncoder = void (*)(Source, TileLayouts, TileLayouts);

/// Returns the kernel for quantized values under scales of rows or columns, or only of tensors,
/// which may use the shared memory that it needs.
template <class Format, class Source>
TileEncoder<Source> tile_encoder_of(bool is_whole, bool has_axes) {
  const auto kernel = is_whole   ? has_axes ? quantize_tile<true, true, Format, Source>
                                            : quantize_tile<true, false, Format, Source>
                        : has_axes ? quantize_tile<false, true, Format, Source>
                                 : quantize_tile<false, false, Format, Source>;
  TOK_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                cudaFuncAttributeMaxDynamicSharedMemorySize, kTileBytes<Source>));
  return kernel;
}

}  // namespace tokamak::gpu
