#include "tokamak/ops/float8/encode_gpu.cuh"
#include "tokamak/ops/float8/float8_gpu.cuh"
#include "tokamak/ops/float8/mx_gpu.cuh"
#include "tokamak/ops/float8/quantize.h"
#include "tokamak/ops/float8/quantized_rows_gpu.cuh"
#include "tokamak/ops/float8/tile_segments_gpu.cuh"

namespace tokamak::gpu {
namespace {

// most[0] = max(most[0], |x|): blocks stride over x, K elements per access.
template <int K, class T>
__global__ void __launch_bounds__(kThreads)
    tensor_amax(int64_t n, const T* x, bool to_bf16, Delayed delayed) {
  constexpr int kAtOnce = K == 1 ? 1 : 4;
  if (delayed.has_scale()) return;
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
  keep_block_maximum(mine, delayed.most);
}

template <class T>
void launch_tensor_amax(const Values<T>& v, unsigned most_blocks, const Delayed& delayed,
                        cudaStream_t stream) {
  constexpr int kSize = Pack<T>::kSize;
  const int64_t n = v.M * v.K;
  if (n % kSize == 0 && detail::is_aligned(v.x)) {
    const unsigned blocks = std::min(most_blocks, blocks_for((n / kSize + 3) / 4));
    tensor_amax<kSize><<<blocks, kThreads, 0, stream>>>(n, v.x, v.to_bf16, delayed);
  } else {
    const unsigned blocks = std::min(most_blocks, blocks_for(n));
    tensor_amax<1><<<blocks, kThreads, 0, stream>>>(n, v.x, v.to_bf16, delayed);
  }
  TOK_CUDA_LAUNCHED();
}

// Each block takes the maxima of a tile of x.
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
  const OwnRows<const T> own =
      own_rows(v, tile_row * kTile + own_row, tile_column * kTile + own_column);
  uint32_t columns[kEach] = {};
  for (int round = 0; round < kRounds; round += kRoundsAtOnce) {
    T values[kRoundsAtOnce][kEach];
#pragma unroll
    for (int i = 0; i < kRoundsAtOnce; ++i)
      load_row<kWhole>(own, (round + i) * kRowsAtOnce, values[i]);
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

// Sets the maxima before any value of x: to those of the second input, or to none.
void start_maxima(const KernelArgs& args, bool has_so_far, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(args.out[0].numel()) * sizeof(float);
  if (!has_so_far) {
    TOK_CUDA(cudaMemsetAsync(args.out[0].data, 0, bytes, stream));
  } else if (args.in[1].data != args.out[0].data) {
    TOK_CUDA(cudaMemcpyAsync(args.out[0].data, args.in[1].data, bytes, cudaMemcpyDeviceToDevice,
                             stream));
  }
}

// inverse = 1 / scale, one per thread; maxima that are not given count as 0.
template <class Format>
struct Invert {
  const float* amax;
  float* inverse;
  bool power_of_two;
  Delayed delayed = {};

  __device__ float scale(int64_t i) const {
    return delayed.template scale_of<Format>(amax != nullptr ? amax[i] : 0.0F, power_of_two);
  }

  __device__ void operator()(int64_t i) const { inverse[i] = 1.0F / scale(i); }
};

// Quantizes under one scale, as x lies; the first thread writes the inverse scale.
template <class Format, class T>
struct EncodeFlat {
  static constexpr int kSize = 16;
  const T* x;
  uint8_t* quantized;
  Invert<Format> scales;
  bool to_bf16;

  __device__ float scale_for(int64_t i) const {
    if (i == 0) scales(0);
    return scales.scale(0);
  }

  // Returns the greatest magnitude of the K values.
  template <int K>
  __device__ uint32_t encode(int64_t i) const {
    T values[K];
    load<K>(x + i, values);
    const float scale = scale_for(i);
    if constexpr (K == 1) {
      quantized[i] =
          static_cast<uint8_t>(encode_float8<Format>(value_of(values[0], to_bf16) * scale));
    } else {
      const auto at = [&](int k) { return value_of(values[k], to_bf16) * scale; };
      uint32_t words[K / 4];
#pragma unroll
      for (int k = 0; k < K; k += 4)
        words[k / 4] = encode_float8<Format>(at(k), at(k + 1), at(k + 2), at(k + 3));
      store<K / 4>(reinterpret_cast<uint32_t*>(quantized + i), words);
    }
    uint32_t most = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) most = max(most, magnitude_of(value_of(values[k], to_bf16)));
    return most;
  }
};

template <int K, class F>
struct EncodeAt {
  F f;

  __device__ void operator()(int64_t i) const { f.template encode<K>(i * K); }
};

// Blocks stride over the values, so that few of them meet at the maximum.
template <int K, class F>
__global__ void __launch_bounds__(kThreads) encode_with_maximum(int64_t n, F f) {
  uint32_t most = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n / K;
       i += static_cast<int64_t>(gridDim.x) * kThreads)
    most = max(most, f.template encode<K>(i * K));
  keep_block_maximum(most, f.scales.delayed.most);
}

template <int K, class F>
void launch_with_maximum(const F& f, int64_t n, DeviceStream stream) {
  constexpr unsigned kMostBlocks = 4096;
  const unsigned blocks = std::min(kMostBlocks, blocks_for(n / K));
  encode_with_maximum<K><<<blocks, kThreads, 0, as_stream(stream)>>>(n, f);
  TOK_CUDA_LAUNCHED();
}

template <class F>
void launch_flat(const F& f, int64_t n, DeviceStream stream) {
  const bool is_wide =
      n % F::kSize == 0 && detail::is_aligned(f.x) && detail::is_aligned(f.quantized);
  if (f.scales.delayed.most != nullptr) {
    is_wide ? launch_with_maximum<F::kSize>(f, n, stream) : launch_with_maximum<1>(f, n, stream);
    return;
  }
  if (is_wide) {
    launch_for(n / F::kSize, stream, EncodeAt<F::kSize, F>{f});
  } else {
    launch_for(n, stream, EncodeAt<1, F>{f});
  }
}

// Values of rows, to be encoded.
template <class T>
struct PlainRows {
  using Element = T;
  using OnlyLoads = void;
  const T* x;
  bool to_bf16;

  template <int K>
  __device__ void values(int64_t i, T (&v)[K]) const {
    load<K>(x + i, v);
    round_each(v, to_bf16);
  }
};

// Quantized values of rows under their own maxima.
template <class Format, class T>
Kernel rows_quantized(const Quantize& op, int64_t M, int64_t K, int most_blocks) {
  return [=](const KernelArgs& args) {
    const QuantizedRows to{.values = args.out[0].as<uint8_t>(),
                           .inverse = args.out[1].as<float>(),
                           .columns = op.has_amax ? args.out[2].as<uint32_t>() : nullptr,
                           .power_of_two = op.power_of_two,
                           .most_blocks = most_blocks};
    const PlainRows<T> rows{args.in[0].as<T>(), op.rounds_to == DType::kBF16};
    launch_quantized_rows<Format>(rows, M, K, to, args.stream, rows.x);
  };
}

// Quantized values both ways of segments, under their own maxima.
template <class Format, class T>
Kernel segments_both_ways(const Quantize& op, int64_t M, int64_t K) {
  const auto launch = prepare_segments_of_tiles<Format, PlainSource<T>>();
  return [=](const KernelArgs& args) {
    if (M * K == 0) return;
    const Values<T> values{args.in[0].as<T>(), M, K, op.rounds_to == DType::kBF16};
    const auto quantized = [&](int out, bool transposed) {
      return QuantizedSegments{.values = args.out[out].as<uint8_t>(),
                               .inverse = args.out[op.inverse_output(transposed)].as<float>(),
                               .power_of_two = op.power_of_two};
    };
    launch({values}, has_whole_rows(values.x, K), M, K,
           {{{.of = {.rows = quantized(0, false), .transposed = quantized(1, true)}, .width = K}}},
           as_stream(args.stream));
  };
}

template <class Format, class T>
void quantize(const Quantize& op, int64_t M, int64_t K, const KernelArgs& args) {
  using Layout = Quantize::Layout;
  const bool to_bf16 = op.rounds_to == DType::kBF16;
  const auto num_quantized = static_cast<size_t>(op.inverse_output());
  const T* x = args.in[0].as<T>();
  if (op.grid == ScaleGrid::kMx) {
    return launch_mx<Format>(Values<T>{x, M, K, to_bf16}, op.rounds_up,
                             op.layout == Layout::kTransposed, args.out[0].as<uint8_t>(),
                             args.out[1].as<uint8_t>(), as_stream(args.stream));
  }
  const bool takes_maxima = !args.has(1);
  const Delayed delayed{.row = op.is_delayed ? args.in[2].as<float>() : nullptr,
                        .most = op.has_amax ? args.out.back().as<uint32_t>() : nullptr};
  const cudaStream_t stream = as_stream(args.stream);
  if (op.has_amax) TOK_CUDA(cudaMemsetAsync(delayed.most, 0, sizeof(uint32_t), stream));
  const Invert<Format> inverse{takes_maxima ? nullptr : args.in[1].as<float>(),
                               args.out[num_quantized].as<float>(), op.power_of_two, delayed};
  const bool is_tensor = op.grid == ScaleGrid::kTensor;
  const bool is_empty = M * K == 0;
  // With kBlocks there is padding, whose scales belong to no values.
  const bool inverts_apart = op.grid == ScaleGrid::kBlocks || is_empty;
  if (inverts_apart) launch_for(args.out[num_quantized].numel(), args.stream, inverse);
  if (is_empty) return;
  auto* quantized = args.out[0].as<uint8_t>();
  const Values<T> values{x, M, K, to_bf16};
  if (takes_maxima && op.grid != ScaleGrid::kBlocks) {
    const auto launch =
        op.layout == Layout::kRows ? launch_segments<Format, T> : launch_columns<Format, T>;
    return launch(values, op.power_of_two, quantized, inverse.inverse, stream);
  }
  if (is_tensor && op.layout == Layout::kRows)
    return launch_flat(EncodeFlat<Format, T>{x, quantized, inverse, to_bf16}, M * K, args.stream);
  const QuantizedTile<T> tiles{
      .values = values,
      .scales = scales_of(op.grid, op.layout == Layout::kTransposed, M, K),
      .amax = inverse.amax,
      .inverse = inverts_apart && !takes_maxima ? nullptr : inverse.inverse,
      .power_of_two = op.power_of_two,
      .rows = op.layout == Layout::kTransposed ? nullptr : quantized,
      .transposed =
          op.layout == Layout::kRows ? nullptr : args.out[num_quantized - 1].as<uint8_t>(),
      .delayed = delayed};
  takes_maxima ? launch_tiles<true, Format>(tiles, stream)
               : launch_tiles<false, Format>(tiles, stream);
}

}  // namespace

Kernel prepare(const Amax& op, const KernelTypes& types, const Setup& setup) {
  const int64_t M = rows_of(types.in[0]);
  const int64_t K = types.in[0].dims.back();
  const TileScales scales = scales_of(op.grid, op.transposed, M, K);
  const auto most_blocks = static_cast<unsigned>(8 * setup.device->num_multiprocessors());
  const bool has_so_far = types.in.size() == (op.is_gated ? 3 : 2);
  return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      const cudaStream_t stream = as_stream(args.stream);
      start_maxima(args, has_so_far, stream);
      if (M * K == 0) return;
      const Values<T> values{args.in[0].as<T>(), M, K, op.rounds_to == DType::kBF16};
      auto* most = args.out[0].as<uint32_t>();
      const Delayed delayed{.row = op.is_gated ? args.in.back().as<float>() : nullptr,
                            .most = most};
      op.grid == ScaleGrid::kTensor ? launch_tensor_amax(values, most_blocks, delayed, stream)
                                    : launch_tile_amax(values, scales, most, stream);
    };
  });
}

Kernel prepare(const Quantize& op, const KernelTypes& types, const Setup& setup) {
  const int64_t M = rows_of(types.in[0]);
  const int64_t K = types.in[0].dims.back();
  return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
    if (op.grid == ScaleGrid::kSegments && op.layout == Quantize::Layout::kBoth) {
      return by_float8(op.format, [&]<class Format>() -> Kernel {
        return segments_both_ways<Format, T>(op, M, K);
      });
    }
    if (op.grid == ScaleGrid::kRows && types.in.size() == 1 && K > 0) {
      return by_float8(op.format, [&]<class Format>() -> Kernel {
        return rows_quantized<Format, T>(op, M, K, most_blocks_of_rows(setup));
      });
    }
    return [=](const KernelArgs& args) {
      op.format == DType::kE4M3 ? quantize<E4M3, T>(op, M, K, args)
                                : quantize<E5M2, T>(op, M, K, args);
    };
  });
}

}  // namespace tokamak::gpu
