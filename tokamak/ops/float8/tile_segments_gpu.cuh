// Quantized values of tiles under scales of segments of their rows and columns, made in one pass.
#pragma once

#include "tokamak/ops/float8/gate_tiles_gpu.cuh"

namespace tokamak::gpu {

/// Quantized values of a matrix in one layout, under a scale for each 128 neighbours.
struct QuantizedSegments {
  uint8_t* values = nullptr;
  float* inverse = nullptr;
  bool power_of_two = false;
};

/// Quantized values as values lie, and transposed; a null pointer asks for none.
struct SegmentLayouts {
  QuantizedSegments rows, transposed;
};

/// One of the matrices that a kernel encodes: F columns from `begin` on of one that is `width`
/// wide.
struct SegmentPart {
  SegmentLayouts of;
  int64_t width = 0;
  int64_t begin = 0;
};

/// The values of a matrix itself.
template <class T>
struct PlainSource {
  using Element = T;
  static constexpr int kParts = 1;
  static constexpr int kE4M3Part = -1;  ///< all quantized values have the kernel's format
  Values<T> v;

  struct Own {
    OwnRows<const T> values;
    bool to_bf16;

    __device__ void bring(int, int row, T* into) const {
      copy_ahead(into, values.at(row), values.has(row));
    }

    template <bool kWhole>
    __device__ void load(int row, T (&into)[kParts][kEach]) const {
      load_row<kWhole>(values, row, into[0]);
      round_each(into[0], to_bf16);
    }
  };

  __device__ int64_t rows() const { return v.M; }

  __device__ int64_t columns() const { return v.K; }

  __device__ Own own(int64_t row, int64_t column) const {
    return {own_rows(v, row, column), v.to_bf16};
  }

  static __device__ void compute(T (&)[kParts][kEach]) {}
};

// A block takes a tile, with twice the threads of other kernels, so that they hold half as much.
constexpr int kSegmentBlock = 2 * kThreads;
constexpr int kSegmentRowsAtOnce = kSegmentBlock / kRowThreads;
constexpr int kSegmentRounds = kTile / kSegmentRowsAtOnce;

// Whether blocks keep the values of a tile in shared memory, into which copies of 16 bytes bring
// the inputs; otherwise they compute them twice.
template <bool kWhole, class T>
constexpr bool kKeepsTile = !kIsHip && kWhole && sizeof(T) == 2;

template <bool kWhole, class Source>
constexpr int kSegmentBytes =
    Source::kParts*(kKeepsTile<kWhole, typename Source::Element>
                        ? kTile* kTile* static_cast<int>(sizeof(typename Source::Element))
                        : kTileWords* static_cast<int>(sizeof(uint32_t)));

template <class Source>
struct SegmentParts {
  SegmentPart parts[Source::kParts];
};

// Returns the scale of part p of a source, of E4M3 for one part and of Format for the others.
template <class Format, class Source>
__device__ inline float scale_of_part(bool power_of_two, int p, uint32_t greatest) {
  const float amax = __uint_as_float(greatest);
  return p == Source::kE4M3Part ? scale_of<E4M3>(amax, power_of_two)
                                : scale_of<Format>(amax, power_of_two);
}

template <class Format, class Source, class T, class Scale>
__device__ inline uint2 encode_part(const T (&v)[kEach], int p, const Scale& scale) {
  return p == Source::kE4M3Part ? encode_each<E4M3>(v, scale) : encode_each<Format>(v, scale);
}

// The place of a thread in the tile of its block.
template <class Source>
struct SegmentPlace {
  int64_t M, F;
  int64_t tile_row, first_row, first_column;
  int thread, own_row, own_column;

  __device__ explicit SegmentPlace(const Source& source) : M(source.rows()), F(source.columns()) {
    const auto tiles = static_cast<unsigned>((F + kTile - 1) / kTile);
    tile_row = blockIdx.x / tiles;
    first_row = tile_row * kTile;
    first_column = static_cast<int64_t>(blockIdx.x % tiles) * kTile;
    thread = static_cast<int>(threadIdx.x);
    own_row = thread / kRowThreads;
    own_column = thread % kRowThreads * kEach;
  }
};

// Makes the scales of a tile's columns from their maxima, and stores their inverses.
template <class Format, class Source, class Maxima>
__device__ void make_column_scales(const SegmentParts<Source>& to, const SegmentPlace<Source>& at,
                                   const Maxima& maxima, float (&scales)[Source::kParts][kTile]) {
#pragma unroll
  for (int p = 0; p < Source::kParts; ++p) {
    const SegmentPart& part = to.parts[p];
    const QuantizedSegments& of = part.of.transposed;
    if (of.values == nullptr || at.thread >= kTile) continue;
    const float scale = scale_of_part<Format, Source>(of.power_of_two, p, maxima.of(p, at.thread));
    scales[p][at.thread] = scale;
    if (at.first_column + at.thread < at.F)
      of.inverse[at.tile_row * part.width + part.begin + at.first_column + at.thread] =
          1.0F / scale;
  }
}

// Puts a tile's quantized values into shared memory, from which both halves of the block store
// them transposed, every second part each.
template <class Source>
__device__ void store_columns(const SegmentParts<Source>& to, const SegmentPlace<Source>& at,
                              const uint2 (&made)[Source::kParts][kSegmentRounds],
                              uint32_t* words) {
#pragma unroll
  for (int p = 0; p < Source::kParts; ++p) {
    if (to.parts[p].of.transposed.values == nullptr) continue;
    uint32_t* const into = &words[p * kTileWords + word_at(at.own_row, at.own_column / 4)];
#pragma unroll
    for (int round = 0; round < kSegmentRounds; ++round)
      *reinterpret_cast<uint2*>(into + word_at(round * kSegmentRowsAtOnce, 0)) = made[p][round];
  }
  __syncthreads();
  const int64_t M16 = (at.M + 15) / 16 * 16;
#pragma unroll
  for (int p = 0; p < Source::kParts; ++p) {
    const SegmentPart& part = to.parts[p];
    uint8_t* const quantized = part.of.transposed.values;
    if (quantized == nullptr || at.thread / kThreads != p % 2) continue;
    store_transposed(words + p * kTileWords, at.first_row, at.first_column, M16, at.F,
                     quantized + part.begin * M16, at.thread % kThreads);
  }
}

// Encodes this thread's values under the scales of their columns.
template <bool kWhole, class Format, class Source, class Kept>
__device__ void encode_columns(const SegmentParts<Source>& to, const SegmentPlace<Source>& at,
                               const typename Source::Own& own, const Kept& kept,
                               const float (&scales)[Source::kParts][kTile],
                               uint2 (&made)[Source::kParts][kSegmentRounds]) {
  using T = typename Source::Element;
#pragma unroll
  for (int p = 0; p < Source::kParts; ++p) {
    if (to.parts[p].of.transposed.values == nullptr) continue;
    float scale[kEach];
    load<kEach>(&scales[p][at.own_column], scale);
#pragma unroll
    for (int round = 0; round < kSegmentRounds; ++round) {
      T v[Source::kParts][kEach];
      if constexpr (kKeepsTile<kWhole, T>) {
        load<kEach>(kept(round, p), v[p]);
      } else {
        own.template load<kWhole>(round * kSegmentRowsAtOnce, v);
        Source::compute(v);
      }
      made[p][round] = encode_part<Format, Source>(v[p], p, [&](int j) { return scale[j]; });
      // Zeros, though a scale may be NaN.
      if (at.first_row + at.own_row + round * kSegmentRowsAtOnce >= at.M) made[p][round] = uint2{};
    }
  }
}

// Makes and stores the inverse scale of the row segment that this thread divides for: threads
// divide for one part, or one round, of a segment each, as divisions cost more than exchanges.
template <int kTogether, class Format, class Source>
__device__ float make_row_scale(const SegmentParts<Source>& to, const SegmentPlace<Source>& at,
                                int round, uint32_t greatest) {
  const int divided = at.thread % kRowThreads / 4;
  const int p = divided % Source::kParts;
  if (divided >= kTogether * Source::kParts || to.parts[p].of.rows.values == nullptr) return 0.0F;
  const SegmentPart& part = to.parts[p];
  const float scale = scale_of_part<Format, Source>(part.of.rows.power_of_two, p, greatest);
  const int below = (round + divided / Source::kParts) * kSegmentRowsAtOnce;
  const int64_t row = at.first_row + at.own_row + below;
  if (at.thread % 4 == 0 && row < at.M)
    part.of.rows.inverse[(part.begin + at.first_column) / kTile * at.M + row] = 1.0F / scale;
  return scale;
}

// Quantizes a tile of each part. REQUIRES: F is a multiple of kTile if a part begins past 0.
template <bool kWhole, class Format, class Source>
__global__ void __launch_bounds__(kSegmentBlock, Source::kParts == 1 ? 3 : 2)
    encode_segments_of_tiles(Source source, SegmentParts<Source> to) {
  using T = typename Source::Element;
  constexpr int kParts = Source::kParts;
  constexpr bool kKeeps = kKeepsTile<kWhole, T>;
  extern __shared__ __align__(16) uint32_t words[];
  __shared__ TileColumns<kParts, kSegmentBlock / 32, T> maxima;
  __shared__ __align__(16) float scales[kParts][kTile];
  const SegmentPlace<Source> at(source);
  const int64_t own_row = at.first_row + at.own_row;
  const int64_t own_column = at.first_column + at.own_column;
  const typename Source::Own own = source.own(own_row, own_column);
  // Where this thread keeps its part of a round.
  T* const kept_first = reinterpret_cast<T*>(words) + at.own_row * kTile + at.own_column;
  const auto kept = [&](int round, int p) {
    return kept_first + p * kTile * kTile + round * kSegmentRowsAtOnce * kTile;
  };
  if constexpr (kKeeps) {
#pragma unroll
    for (int round = 0; round < kSegmentRounds; ++round) {
#pragma unroll
      for (int p = 0; p < kParts; ++p) own.bring(p, round * kSegmentRowsAtOnce, kept(round, p));
    }
    wait_for_copies();
  }
  constexpr int kTogether = kParts == 1 && kKeeps ? kSegmentRounds : 1;
  static_assert(kTogether * kParts <= 4 && kRowThreads == 16);
  OwnRows<uint8_t> quantized_rows[kParts];
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const SegmentPart& part = to.parts[p];
    quantized_rows[p] =
        own_rows(part.of.rows.values + part.begin, at.M, at.F, own_row, own_column, part.width);
  }
  ColumnMaxima<kEach, T> columns[kParts];
#pragma unroll 1
  for (int round = 0; round < kSegmentRounds; round += kTogether) {
    T v[kParts][kEach];
    uint32_t most[4] = {};
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if constexpr (kKeeps) {
#pragma unroll
        for (int p = 0; p < kParts; ++p) load<kEach>(kept(round + i, p), v[p]);
      } else {
        own.template load<kWhole>(round * kSegmentRowsAtOnce, v);
      }
      Source::compute(v);
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        columns[p].add(v[p]);
        most[i * kParts + p] = magnitude_of(v[p]);
        if constexpr (kKeeps && kParts > 1) store<kEach>(kept(round, p), v[p]);
      }
    }
    const float scale = make_row_scale<kTogether, Format>(to, at, round, greatest_of_four(most));
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        if (to.parts[p].of.rows.values == nullptr) continue;
        const float own_scale = of_word(scale, i * kParts + p);
        if constexpr (kTogether > 1) load<kEach>(kept(round + i, p), v[p]);
        store_row<kWhole>(quantized_rows[p], (round + i) * kSegmentRowsAtOnce,
                          encode_part<Format, Source>(v[p], p, [&](int) { return own_scale; }));
      }
    }
  }
  maxima.put(columns);
  __syncthreads();
  make_column_scales<Format>(to, at, maxima, scales);
  __syncthreads();
  uint2 made[kParts][kSegmentRounds];
  encode_columns<kWhole, Format>(to, at, own, kept, scales, made);
  __syncthreads();  // quantized values lie where values were
  store_columns(to, at, made, words);
}

/// Returns what launches the kernel, which may use the shared memory that it needs.
template <class Format, class Source>
auto prepare_segments_of_tiles() {
  const auto whole = encode_segments_of_tiles<true, Format, Source>;
  const auto any = encode_segments_of_tiles<false, Format, Source>;
  const auto allow = [](const auto kernel, int bytes) {
    TOK_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  };
  allow(whole, kSegmentBytes<true, Source>);
  allow(any, kSegmentBytes<false, Source>);
  return [=](const Source& source, bool is_packed, int64_t M, int64_t F,
             const SegmentParts<Source>& to, cudaStream_t stream) {
    const auto blocks = static_cast<unsigned>(tiles_of(M) * tiles_of(F));
    const bool is_whole = is_packed && std::all_of(std::begin(to.parts), std::end(to.parts),
                                                   [](const SegmentPart& part) {
                                                     return detail::is_aligned(part.of.rows.values);
                                                   });
    if (is_whole) {
      whole<<<blocks, kSegmentBlock, kSegmentBytes<true, Source>, stream>>>(source, to);
    } else {
      any<<<blocks, kSegmentBlock, kSegmentBytes<false, Source>, stream>>>(source, to);
    }
    TOK_CUDA_LAUNCHED();
  };
}

}  // namespace tokamak::gpu
