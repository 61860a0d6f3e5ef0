#include "tokamak/gpu/float8.cuh"
#include "tokamak/ops/float8/quantize.h"
#include "tokamak/ops/float8/tiles_gpu.cuh"

namespace tokamak::gpu {
namespace {

// float8_scale of core/float8.h. Division in fp32 has its bits: a quotient of floats that is
// rounded to double first rounds to the same float.
template <class Format>
__device__ float scale_of(float amax, bool power_of_two) {
  constexpr auto kMost = static_cast<float>(static_cast<double>(Format::kLargest) / 1e-12);
  // NaN is not less, and stays one.
  const float scale = static_cast<double>(amax) < 1e-12 ? kMost : Format::kLargest / amax;
  return power_of_two ? __uint_as_float(__float_as_uint(scale) & 0xFF800000U) : scale;
}

// most[0] = max(most[0], |x|): a block strides over x, K elements an access.
template <int K, class T>
__global__ void __launch_bounds__(kThreads)
    tensor_amax(int64_t n, const T* x, bool to_bf16, uint32_t* most) {
  constexpr int kAtOnce = K == 1 ? 1 : 4;
  __shared__ uint32_t parts[kThreads / 32];
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  uint32_t mine = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n / K;
       i += kAtOnce * step) {
    T values[kAtOnce][K];
#pragma unroll
    for (int a = 0; a < kAtOnce; ++a) load<K>(x + min(i + a * step, n / K - 1) * K, values[a]);
#pragma unroll
    for (int a = 0; a < kAtOnce; ++a) {
#pragma unroll
      for (int k = 0; k < K; ++k) mine = max(mine, magnitude_of(value_of(values[a][k], to_bf16)));
    }
  }
  mine = warp_max(mine, 32);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  mine = warp_max(threadIdx.x < kThreads / 32 ? parts[threadIdx.x] : 0, 32);
  if (threadIdx.x == 0) atomicMax(most, mine);
}

template <class T>
void launch_tensor_amax(const Values<T>& v, unsigned most_blocks, uint32_t* most,
                        cudaStream_t stream) {
  constexpr int kSize = Pack<T>::kSize;
  const int64_t n = v.M * v.K;
  if (n % kSize == 0 && detail::is_aligned(v.x)) {
    const unsigned blocks = std::min(most_blocks, blocks_for((n / kSize + 3) / 4));
    tensor_amax<kSize><<<blocks, kThreads, 0, stream>>>(n, v.x, v.to_bf16, most);
  } else {
    const unsigned blocks = std::min(most_blocks, blocks_for(n));
    tensor_amax<1><<<blocks, kThreads, 0, stream>>>(n, v.x, v.to_bf16, most);
  }
  TOK_CUDA_LAUNCHED();
}

// A block for each tile of x.
template <bool kWhole, class T>
__global__ void __launch_bounds__(kThreads)
    tile_amax(Values<T> v, TileScales scales, uint32_t* most) {
  __shared__ uint32_t maxima[kTile];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kTile) maxima[thread] = 0;
  __syncthreads();
  const auto tiles = static_cast<unsigned>((v.K + kTile - 1) / kTile);
  const int64_t tile_row = blockIdx.x / tiles;
  const int64_t tile_column = blockIdx.x % tiles;
  const int own_row = thread / kRowThreads;
  const int own_column = thread % kRowThreads * kEach;
  uint32_t columns[kEach] = {};
  for (int round = 0; round < kRounds; round += kRoundsAtOnce) {
    T values[kRoundsAtOnce][kEach];
#pragma unroll
    for (int i = 0; i < kRoundsAtOnce; ++i)
      load_round<kWhole>(v, tile_row * kTile + (round + i) * kRowsAtOnce + own_row,
                         tile_column * kTile + own_column, values[i]);
#pragma unroll
    for (int i = 0; i < kRoundsAtOnce; ++i) {
      uint32_t row = 0;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const uint32_t magnitude = magnitude_of(value_of(values[i][j], v.to_bf16));
        row = max(row, magnitude);
        columns[j] = max(columns[j], magnitude);
      }
      if (scales.axis != ScaleAxis::kRow) continue;
      row = warp_max(row, kRowThreads);
      if (own_column == 0) maxima[(round + i) * kRowsAtOnce + own_row] = row;
    }
  }
  if (scales.axis == ScaleAxis::kColumn) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const uint32_t both = max(columns[j], __shfl_xor_sync(0xFFFFFFFFU, columns[j], kRowThreads));
      if (thread % 32 < kRowThreads) atomicMax(&maxima[own_column + j], both);
    }
  } else if (scales.axis == ScaleAxis::kTile) {
#pragma unroll
    for (int j = 1; j < kEach; ++j) columns[0] = max(columns[0], columns[j]);
    const uint32_t mine = warp_max(columns[0], 32);
    if (thread % 32 == 0) atomicMax(&maxima[0], mine);
  }
  __syncthreads();
  const int64_t left = scales.axis == ScaleAxis::kRow      ? v.M - tile_row * kTile
                       : scales.axis == ScaleAxis::kColumn ? v.K - tile_column * kTile
                                                           : 1;
  if (thread < min(left, static_cast<int64_t>(kTile)))
    atomicMax(most + scales.first_of(tile_row, tile_column) + thread, maxima[thread]);
}

template <class T>
void launch_tile_amax(const Values<T>& v, const TileScales& scales, uint32_t* most,
                      cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(tiles_of(v.M) * tiles_of(v.K));
  if (has_whole_rows(v.x, v.K)) {
    tile_amax<true><<<blocks, kThreads, 0, stream>>>(v, scales, most);
  } else {
    tile_amax<false><<<blocks, kThreads, 0, stream>>>(v, scales, most);
  }
  TOK_CUDA_LAUNCHED();
}

// The maxima of values that are still to come: those so far, or none.
void start_maxima(const KernelArgs& args, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(args.out[0].numel()) * sizeof(float);
  if (!args.has(1)) {
    TOK_CUDA(cudaMemsetAsync(args.out[0].data, 0, bytes, stream));
  } else if (args.in[1].data != args.out[0].data) {
    TOK_CUDA(cudaMemcpyAsync(args.out[0].data, args.in[1].data, bytes, cudaMemcpyDeviceToDevice,
                             stream));
  }
}

// inverse = 1 / scale, in one thread each.
template <class Format>
struct Invert {
  const float* amax;
  float* inverse;
  bool power_of_two;

  __device__ void operator()(int64_t i) const {
    inverse[i] = 1.0F / scale_of<Format>(amax[i], power_of_two);
  }
};

// Codes under one scale, as x lies; the first thread yields the inverse scale.
template <class Format, class T>
struct EncodeFlat {
  static constexpr int kSize = 16;
  const T* x;
  uint8_t* codes;
  Invert<Format> scales;
  bool to_bf16;

  __device__ float scale_for(int64_t i) const {
    if (i == 0) scales(0);
    return scale_of<Format>(*scales.amax, scales.power_of_two);
  }

  template <int K>
  __device__ void encode(int64_t i) const {
    T values[K];
    load<K>(x + i, values);
    const float scale = scale_for(i);
    if constexpr (K == 1) {
      codes[i] = static_cast<uint8_t>(encode_float8<Format>(value_of(values[0], to_bf16) * scale));
    } else {
      const auto at = [&](int k) { return value_of(values[k], to_bf16) * scale; };
      uint32_t words[K / 4];
#pragma unroll
      for (int k = 0; k < K; k += 4)
        words[k / 4] = encode_float8<Format>(at(k), at(k + 1), at(k + 2), at(k + 3));
      store<K / 4>(reinterpret_cast<uint32_t*>(codes + i), words);
    }
  }
};

template <int K, class F>
struct EncodeAt {
  F f;

  __device__ void operator()(int64_t i) const { f.template encode<K>(i * K); }
};

template <class F>
void launch_flat(const F& f, int64_t n, DeviceStream stream) {
  if (n % F::kSize == 0 && detail::is_aligned(f.x) && detail::is_aligned(f.codes)) {
    launch_for(n / F::kSize, stream, EncodeAt<F::kSize, F>{f});
  } else {
    launch_for(n, stream, EncodeAt<1, F>{f});
  }
}

template <class T>
struct TileCodes {
  Values<T> values;
  TileScales scales;
  const float* amax;
  float* inverse;  // null where another kernel makes them
  bool power_of_two;
  uint8_t* rows;        // as x lies, or null
  uint8_t* transposed;  // or null
};

// Words of 4 codes of a row of a tile in shared memory. The padding after each 16 rows lets 8
// threads that read rows 16 apart, 4 neighbouring words each, meet all banks.
constexpr int kRowWords = kTile / 4;
constexpr int kTileWords = kTile * kRowWords + kTile / 16 * 4;

__device__ int word_at(int row, int word) {
  return row * kRowWords + row / 16 * 4 + word;
}

// Words [r] of four rows become words of four columns.
__device__ void transpose_bytes(uint32_t (&w)[4]) {
  const uint32_t low_01 = __byte_perm(w[0], w[1], 0x5140);
  const uint32_t high_01 = __byte_perm(w[0], w[1], 0x7362);
  const uint32_t low_23 = __byte_perm(w[2], w[3], 0x5140);
  const uint32_t high_23 = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(low_01, low_23, 0x5410);
  w[1] = __byte_perm(low_01, low_23, 0x7632);
  w[2] = __byte_perm(high_01, high_23, 0x5410);
  w[3] = __byte_perm(high_01, high_23, 0x7632);
}

// A thread's 4 columns of 16 rows of the tile, 16 bytes a store.
__device__ void store_transposed(const uint32_t* tile, int64_t row, int64_t column, int64_t M16,
                                 int64_t K, uint8_t* codes) {
  const int rows = static_cast<int>(threadIdx.x) % (kTile / 16) * 16;
  const int word = static_cast<int>(threadIdx.x) / (kTile / 16);
  if (row + rows >= M16) return;
  uint32_t columns[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t words[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) words[r] = tile[word_at(rows + i * 4 + r, word)];
    transpose_bytes(words);
#pragma unroll
    for (int j = 0; j < 4; ++j) columns[j][i] = words[j];
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int64_t k = column + word * 4 + j;
    if (k < K) store<4>(reinterpret_cast<uint32_t*>(codes + k * M16 + row + rows), columns[j]);
  }
}

// The scales of a tile, and their inverses.
template <class Format, class T>
__device__ void make_scales(const TileCodes<T>& c, int64_t tile_row, int64_t tile_column,
                            float (&scales)[kTile]) {
  const int thread = static_cast<int>(threadIdx.x);
  const ScaleAxis axis = c.scales.axis;
  const int64_t left =
      axis == ScaleAxis::kRow ? c.values.M - tile_row * kTile : c.values.K - tile_column * kTile;
  if (thread >= kTile || (axis != ScaleAxis::kTile && thread >= left)) return;
  const int own = axis == ScaleAxis::kTile ? 0 : thread;
  const int64_t at = c.scales.first_of(tile_row, tile_column) + own;
  scales[thread] = scale_of<Format>(c.amax[at], c.power_of_two);
  if (c.inverse != nullptr && own == thread && c.scales.is_first(tile_row, tile_column))
    c.inverse[at] = 1.0F / scales[thread];
}

// A block for each tile of x, whose codes reach the transposed matrix through shared memory.
template <bool kWhole, class Format, class T>
__global__ void __launch_bounds__(kThreads, 3) encode_tiles(TileCodes<T> c) {
  __shared__ __align__(16) uint32_t tile[kTileWords];
  __shared__ __align__(16) float scales[kTile];
  const Values<T>& v = c.values;
  const int thread = static_cast<int>(threadIdx.x);
  const auto tiles = static_cast<unsigned>((v.K + kTile - 1) / kTile);
  const int64_t row = static_cast<int64_t>(blockIdx.x / tiles) * kTile;
  const int64_t column = static_cast<int64_t>(blockIdx.x % tiles) * kTile;
  const int own_row = thread / kRowThreads;
  const int own_column = thread % kRowThreads * kEach;
  const ScaleAxis axis = c.scales.axis;
  float scale[kEach];
#pragma unroll
  for (int round = 0; round < kRounds; round += kRoundsAtOnce) {
    T values[kRoundsAtOnce][kEach];
#pragma unroll
    for (int i = 0; i < kRoundsAtOnce; ++i)
      load_round<kWhole>(v, row + (round + i) * kRowsAtOnce + own_row, column + own_column,
                         values[i]);
    if (round == 0) {
      make_scales<Format>(c, row / kTile, column / kTile, scales);
      __syncthreads();
      load<kEach>(&scales[own_column], scale);
    }
#pragma unroll
    for (int i = 0; i < kRoundsAtOnce; ++i) {
      const int r = (round + i) * kRowsAtOnce + own_row;
      const bool is_inside = row + r < v.M;
      if (axis == ScaleAxis::kRow) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) scale[j] = scales[r];
      }
      const auto at = [&](int j) { return value_of(values[i][j], v.to_bf16) * scale[j]; };
      uint2 words{encode_float8<Format>(at(0), at(1), at(2), at(3)),
                  encode_float8<Format>(at(4), at(5), at(6), at(7))};
      if (!is_inside) words = uint2{};  // zeros, though a scale may be NaN
      if (c.transposed != nullptr)
        *reinterpret_cast<uint2*>(&tile[word_at(r, own_column / 4)]) = words;
      if (c.rows == nullptr || !is_inside) continue;
      uint8_t* const into = c.rows + (row + r) * v.K + column + own_column;
      if constexpr (kWhole) {
        if (column + own_column < v.K) *reinterpret_cast<uint2*>(into) = words;
      } else {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          if (column + own_column + j < v.K)
            into[j] = static_cast<uint8_t>((j < 4 ? words.x : words.y) >> (j % 4 * 8));
        }
      }
    }
  }
  if (c.transposed == nullptr) return;
  __syncthreads();
  store_transposed(tile, row, column, (v.M + 15) / 16 * 16, v.K, c.transposed);
}

template <class Format, class T>
void launch_tiles(const TileCodes<T>& c, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(tiles_of(c.values.M) * tiles_of(c.values.K));
  if (has_whole_rows(c.values.x, c.values.K) && detail::is_aligned(c.rows)) {
    encode_tiles<true, Format><<<blocks, kThreads, 0, stream>>>(c);
  } else {
    encode_tiles<false, Format><<<blocks, kThreads, 0, stream>>>(c);
  }
  TOK_CUDA_LAUNCHED();
}

template <class Format, class T>
void quantize(const Quantize& op, int64_t M, int64_t K, const KernelArgs& args) {
  using Layout = Quantize::Layout;
  const bool to_bf16 = op.rounds_to == DType::kBF16;
  const auto num_codes = args.out.size() - 1;
  const T* x = args.in[0].as<T>();
  const Invert<Format> inverse{args.in[1].as<float>(), args.out[num_codes].as<float>(),
                               op.power_of_two};
  const bool is_tensor = op.grid == ScaleGrid::kTensor;
  const bool is_empty = M * K == 0;
  // Blocks have padding.
  const bool inverts_apart = op.grid == ScaleGrid::kBlocks || is_empty;
  if (inverts_apart) launch_for(args.out[num_codes].numel(), args.stream, inverse);
  if (is_empty) return;
  auto* codes = args.out[0].as<uint8_t>();
  if (is_tensor && op.layout == Layout::kRows)
    return launch_flat(EncodeFlat<Format, T>{x, codes, inverse, to_bf16}, M * K, args.stream);
  const TileCodes<T> tiles{
      .values = {x, M, K, to_bf16},
      .scales = scales_of(op.grid, op.layout == Layout::kTransposed, M, K),
      .amax = inverse.amax,
      .inverse = inverts_apart ? nullptr : inverse.inverse,
      .power_of_two = op.power_of_two,
      .rows = op.layout == Layout::kTransposed ? nullptr : codes,
      .transposed = op.layout == Layout::kRows ? nullptr : args.out[num_codes - 1].as<uint8_t>()};
  launch_tiles<Format>(tiles, as_stream(args.stream));
}

}  // namespace

Kernel prepare(const Amax& op, const KernelTypes& types, const Setup& setup) {
  const int64_t M = rows_of(types.in[0]);
  const int64_t K = types.in[0].dims.back();
  const TileScales scales = scales_of(op.grid, op.transposed, M, K);
  const auto most_blocks = static_cast<unsigned>(8 * setup.device->num_multiprocessors());
  return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      const cudaStream_t stream = as_stream(args.stream);
      start_maxima(args, stream);
      if (M * K == 0) return;
      const Values<T> values{args.in[0].as<T>(), M, K, op.rounds_to == DType::kBF16};
      auto* most = args.out[0].as<uint32_t>();
      op.grid == ScaleGrid::kTensor ? launch_tensor_amax(values, most_blocks, most, stream)
                                    : launch_tile_amax(values, scales, most, stream);
    };
  });
}

Kernel prepare(const Quantize& op, const KernelTypes& types, const Setup&) {
  const int64_t M = rows_of(types.in[0]);
  const int64_t K = types.in[0].dims.back();
  return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      op.format == DType::kE4M3 ? quantize<Float8E4M3, T>(op, M, K, args)
                                : quantize<Float8E5M2, T>(op, M, K, args);
    };
  });
}

}  // namespace tokamak::gpu
