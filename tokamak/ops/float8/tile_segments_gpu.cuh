// Codes of tiles under scales of segments of their rows and columns, made in one pass.
#pragma once

#include "tokamak/ops/float8/gate_tiles_gpu.cuh"

namespace tokamak::gpu {

/// Codes of a matrix in one layout, under a scale for each 128 neighbours.
struct SegmentCodes {
  uint8_t* codes = nullptr;
  float* inverse = nullptr;
  bool power_of_two = false;
};

/// Codes as values lie, and transposed; null codes are not made.
struct SegmentLayouts {
  SegmentCodes rows, transposed;
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
  static constexpr int kE4M3Part = -1;  ///< all codes have the kernel's format
  Values<T> v;

  __device__ int64_t rows() const { return v.M; }

  __device__ int64_t columns() const { return v.K; }

  __device__ void bring(int, int64_t row, int64_t column, bool is_inside, T* into) const {
    copy_ahead(into, v.x + row * v.K + column, is_inside);
  }

  template <bool kWhole>
  __device__ void load(int64_t row, int64_t column, T (&into)[kParts][kEach]) const {
    load_round<kWhole>(v, row, column, into[0]);
    round_each(into[0], v.to_bf16);
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

// Makes codes of a tile of each part. REQUIRES: F is a multiple of kTile if a part begins past 0.
template <bool kWhole, class Format, class Source>
__global__ void __launch_bounds__(kSegmentBlock, Source::kParts == 1 ? 3 : 2)
    encode_segments_of_tiles(Source source, SegmentParts<Source> to) {
  using T = typename Source::Element;
  constexpr int kParts = Source::kParts;
  constexpr bool kKeeps = kKeepsTile<kWhole, T>;
  extern __shared__ __align__(16) uint32_t words[];
  __shared__ TileColumns<kParts, kSegmentBlock / 32, T> maxima;
  __shared__ __align__(16) float scales[kParts][kTile];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t M = source.rows();
  const int64_t F = source.columns();
  const auto tiles = static_cast<unsigned>((F + kTile - 1) / kTile);
  const int64_t tile_row = blockIdx.x / tiles;
  const int64_t tile_column = blockIdx.x % tiles;
  const int64_t first_row = tile_row * kTile;
  const int64_t first_column = tile_column * kTile;
  const int own_row = thread / kRowThreads;
  const int own_column = thread % kRowThreads * kEach;
  const int64_t column = first_column + own_column;
  const int64_t left = F - column;
  // Where this thread keeps its part of a round.
  const auto kept = [&](int round, int p) {
    T* const values = reinterpret_cast<T*>(words) + p * kTile * kTile;
    return values + (round * kSegmentRowsAtOnce + own_row) * kTile + own_column;
  };
  if constexpr (kKeeps) {
#pragma unroll
    for (int round = 0; round < kSegmentRounds; ++round) {
      const int64_t row = first_row + round * kSegmentRowsAtOnce + own_row;
      const bool is_inside = row < M && left > 0;
#pragma unroll
      for (int p = 0; p < kParts; ++p)
        source.bring(p, is_inside ? row : 0, is_inside ? column : 0, is_inside, kept(round, p));
    }
  }
  if constexpr (kKeeps) wait_for_copies();
  using Own = Format;
  constexpr int kSharers = kParts == 1 ? 1 : 4;
  const auto scale_in = [](bool power_of_two, int p, uint32_t greatest) {
    const float amax = __uint_as_float(greatest);
    return p == Source::kE4M3Part ? scale_of<E4M3>(amax, power_of_two)
                                  : scale_of<Own>(amax, power_of_two);
  };
  const auto encode = [](const T(&v)[kEach], int p, const auto& scale) {
    return p == Source::kE4M3Part ? encode_each<E4M3>(v, false, scale)
                                  : encode_each<Own>(v, false, scale);
  };
  ColumnMaxima<kEach, T> columns[kParts];
#pragma unroll 1
  for (int round = 0; round < kSegmentRounds; ++round) {
    const int64_t row = first_row + round * kSegmentRowsAtOnce + own_row;
    T v[kParts][kEach];
    if constexpr (kKeeps) {
#pragma unroll
      for (int p = 0; p < kParts; ++p) load<kEach>(kept(round, p), v[p]);
    } else {
      source.template load<kWhole>(row, column, v);
    }
    Source::compute(v);
    // Threads of a segment divide for one part each, as divisions cost more than shuffles.
    uint32_t mine = 0;
    bool power_of_two = false;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const SegmentCodes& rows = to.parts[p].of.rows;
      columns[p].add(v[p]);
      if constexpr (kKeeps && kParts > 1) store<kEach>(kept(round, p), v[p]);
      if (rows.codes == nullptr) continue;
      const uint32_t of_row = warp_max(magnitude_of(v[p]), kRowThreads);
      if (thread % kSharers != p) continue;
      mine = of_row;
      power_of_two = rows.power_of_two;
    }
    const float own = scale_in(power_of_two, thread % kSharers, mine);
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const SegmentPart& part = to.parts[p];
      const SegmentCodes& rows = part.of.rows;
      if (rows.codes == nullptr) continue;
      const float scale = __shfl_sync(0xFFFFFFFFU, own, thread % 32 - thread % kSharers + p);
      if (row >= M) continue;
      store_each<kWhole>(encode(v[p], p, [&](int) { return scale; }),
                         rows.codes + row * part.width + part.begin + column, left);
      if (thread % kRowThreads == p)
        rows.inverse[(part.begin + first_column) / kTile * M + row] = 1.0F / own;
    }
  }
  maxima.put(columns);
  __syncthreads();
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const SegmentPart& part = to.parts[p];
    const SegmentCodes& of = part.of.transposed;
    if (of.codes == nullptr || thread >= kTile) continue;
    const float scale = scale_in(of.power_of_two, p, maxima.of(p, thread));
    scales[p][thread] = scale;
    if (first_column + thread < F)
      of.inverse[tile_row * part.width + part.begin + first_column + thread] = 1.0F / scale;
  }
  __syncthreads();
  uint2 made[kParts][kSegmentRounds];
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    if (to.parts[p].of.transposed.codes == nullptr) continue;
    float scale[kEach];
    load<kEach>(&scales[p][own_column], scale);
#pragma unroll
    for (int round = 0; round < kSegmentRounds; ++round) {
      const int64_t row = first_row + round * kSegmentRowsAtOnce + own_row;
      T v[kParts][kEach];
      if constexpr (kKeeps) {
        load<kEach>(kept(round, p), v[p]);
      } else {
        source.template load<kWhole>(row, column, v);
        Source::compute(v);
      }
      made[p][round] = encode(v[p], p, [&](int j) { return scale[j]; });
      if (row >= M) made[p][round] = uint2{};  // zeros, though a scale may be NaN
    }
  }
  // Codes lie where values were.
  __syncthreads();
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    if (to.parts[p].of.transposed.codes == nullptr) continue;
#pragma unroll
    for (int round = 0; round < kSegmentRounds; ++round) {
      const int at = word_at(round * kSegmentRowsAtOnce + own_row, own_column / 4);
      *reinterpret_cast<uint2*>(&words[p * kTileWords + at]) = made[p][round];
    }
  }
  __syncthreads();
  const int64_t M16 = (M + 15) / 16 * 16;
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const SegmentPart& part = to.parts[p];
    uint8_t* const codes = part.of.transposed.codes;
    // Each half of the block stores every second part.
    if (codes == nullptr || thread / kThreads != p % 2) continue;
    store_transposed(words + p * kTileWords, first_row, first_column, M16, F,
                     codes + part.begin * M16, thread % kThreads);
  }
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
                                                     return detail::is_aligned(part.of.rows.codes);
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
