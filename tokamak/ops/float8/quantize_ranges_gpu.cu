#include "tokamak/gpu/ranges.cuh"
#include "tokamak/ops/float8/encode_gpu.cuh"
#include "tokamak/ops/float8/quantize_ranges.h"

namespace tokamak::gpu {
namespace {

// Elements per block; a range's blocks count from its begin.
constexpr int64_t kBlock = 16384;

// Quantized values that a thread stores at once.
constexpr int kQuantized = 16;

// Maxima by site, and the rows of a table of delayed scales, if there is one.
struct Sites {
  const float* maxima = nullptr;
  const float* rows = nullptr;
  int64_t columns = 0;

  __device__ Delayed delayed(int64_t site) const {
    return {.row = rows == nullptr ? nullptr : rows + site * columns};
  }

  template <class Format>
  __device__ float scale_of(int64_t site, bool power_of_two) const {
    return delayed(site).template scale_of<Format>(maxima[site], power_of_two);
  }
};

// most[site] = max(most[site], |x|) over the block's elements, K per access, if it has no scale.
template <int K, class T>
__global__ void __launch_bounds__(kThreads)
    amax_ranges(const __grid_constant__ BlockRanges ranges, int64_t first, const T* x, bool to_bf16,
                Sites sites, uint32_t* most) {
  constexpr int kAtOnce = K == 1 ? 1 : 4;
  const int64_t block = first + blockIdx.x;
  const BlockRange& range = ranges.all[ranges.range_of(block)];
  const auto site = static_cast<int64_t>(range.value);
  if (sites.delayed(site).has_scale()) return;
  const int64_t begin = range.begin + (block - range.first_block) * kBlock;
  const int64_t end = min(begin + kBlock, range.end);
  uint32_t mine = 0;
  for (int64_t i = begin + threadIdx.x * K; i < end; i += kAtOnce * kThreads * K) {
    T values[kAtOnce][K];
#pragma unroll
    for (int a = 0; a < kAtOnce; ++a) load<K>(x + min(i + a * kThreads * K, end - K), values[a]);
#pragma unroll
    for (int a = 0; a < kAtOnce; ++a) {
#pragma unroll
      for (int k = 0; k < K; ++k) mine = max(mine, magnitude_of(value_of(values[a][k], to_bf16)));
    }
  }
  keep_block_maximum(mine, most + site);
}

// Encodes the block's elements, K per store; a negative site's become 0. Raises most[site] to their
// greatest magnitude.
template <class Format, bool kHasAmax, int K, class T>
__global__ void __launch_bounds__(kThreads)
    quantize_ranges(const __grid_constant__ BlockRanges ranges, int64_t first, const T* x,
                    bool to_bf16, Sites sites, bool power_of_two, uint8_t* quantized,
                    uint32_t* most) {
  const int64_t block = first + blockIdx.x;
  const BlockRange& range = ranges.all[ranges.range_of(block)];
  const auto site = static_cast<int64_t>(range.value);
  const float scale = site < 0 ? 0.0F : sites.scale_of<Format>(site, power_of_two);
  uint32_t mine = 0;
  const int64_t begin = range.begin + (block - range.first_block) * kBlock;
  const int64_t end = min(begin + kBlock, range.end);
  for (int64_t i = begin + threadIdx.x * K; i < end; i += kThreads * K) {
    T values[K];
    if (site < 0) {
#pragma unroll
      for (int k = 0; k < K; ++k) values[k] = T(0.0F);
    } else {
      load<K>(x + i, values);
    }
    const auto at = [&](int k) {
      const float value = value_of(values[k], to_bf16);
      if constexpr (kHasAmax) mine = max(mine, magnitude_of(value));
      return value * scale;
    };
    if constexpr (K == 1) {
      quantized[i] = static_cast<uint8_t>(encode_float8<Format>(at(0)));
    } else {
      uint32_t words[K / 4];
#pragma unroll
      for (int k = 0; k < K; k += 4)
        words[k / 4] = encode_float8<Format>(at(k), at(k + 1), at(k + 2), at(k + 3));
      store<K / 4>(reinterpret_cast<uint32_t*>(quantized + i), words);
    }
  }
  if constexpr (kHasAmax) {
    if (site >= 0) keep_block_maximum(mine, most + site);
  }
}

template <class Format>
struct InvertSites {
  Sites sites;
  float* inverse;
  bool power_of_two;

  __device__ void operator()(int64_t i) const {
    constexpr int64_t kStride = QuantizeRanges::kStride;
    inverse[i] = i % kStride == 0 ? 1.0F / sites.scale_of<Format>(i / kStride, power_of_two) : 0.0F;
  }
};

Sites sites_of(const KernelArgs& args, bool is_delayed) {
  Sites sites{.maxima = args.in[1].as<float>()};
  if (!is_delayed) return sites;
  sites.rows = args.in.back().as<float>();
  sites.columns = args.in.back().dim(1);
  return sites;
}

int64_t blocks_of(const BlockRange& r) {
  return (r.end - r.begin + kBlock - 1) / kBlock;
}

// Whether every range is whole accesses of `size` elements.
bool are_whole(const std::vector<BlockRange>& ranges, int64_t size) {
  int64_t bits = 0;
  for (const BlockRange& r : ranges) bits |= r.begin | r.end;
  return bits % size == 0;
}

std::vector<BlockRange> ranges_of(const std::vector<QuantizedRange>& ranges) {
  std::vector<BlockRange> all;
  for (const QuantizedRange& r : ranges)
    all.push_back({.begin = r.begin, .end = r.end, .value = static_cast<double>(r.site)});
  return all;
}

// Adds what lies between ranges, under site -1.
std::vector<BlockRange> with_gaps(const std::vector<QuantizedRange>& ranges, int64_t n) {
  std::vector<BlockRange> all;
  int64_t end = 0;
  const auto add_gap = [&](int64_t begin) {
    if (end < begin) all.push_back({.begin = end, .end = begin, .value = -1.0});
  };
  for (const BlockRange& r : ranges_of(ranges)) {
    add_gap(r.begin);
    all.push_back(r);
    end = r.end;
  }
  add_gap(n);
  return all;
}

template <class Format, bool kHasAmax, class T>
Kernel encoder(const QuantizeRanges& op, const KernelTypes& types) {
  const std::vector<BlockRange> ranges = with_gaps(op.ranges, types.in[0].numel());
  const bool whole = are_whole(ranges, kQuantized);
  return [=, to_bf16 = op.rounds_to == DType::kBF16, power_of_two = op.power_of_two,
          is_delayed = op.is_delayed, num_sites = types.in[1].numel()](const KernelArgs& args) {
    const T* x = args.in[0].as<T>();
    const Sites sites = sites_of(args, is_delayed);
    auto* quantized = args.out[0].as<uint8_t>();
    launch_for(QuantizeRanges::kStride * num_sites, args.stream,
               InvertSites<Format>{sites, args.out[1].as<float>(), power_of_two});
    uint32_t* most = nullptr;
    if constexpr (kHasAmax) {
      most = args.out[2].as<uint32_t>();
      clear_maxima(most, num_sites, args.stream);
    }
    const bool is_wide = whole && detail::is_aligned(x) && detail::is_aligned(quantized);
    const auto kernel = is_wide ? quantize_ranges<Format, kHasAmax, kQuantized, T>
                                : quantize_ranges<Format, kHasAmax, 1, T>;
    for_range_groups(ranges, blocks_of, [&](const BlockRanges& group, int64_t first, int64_t n) {
      kernel<<<static_cast<unsigned>(n), kThreads, 0, as_stream(args.stream)>>>(
          group, first, x, to_bf16, sites, power_of_two, quantized, most);
      TOK_CUDA_LAUNCHED();
    });
  };
}

}  // namespace

Kernel prepare(const AmaxRanges& op, const KernelTypes& types, const Setup&) {
  const bool has_so_far = types.in.size() == (op.is_gated ? 3 : 2);
  return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
    constexpr int kSize = Pack<T>::kSize;
    return [=, ranges = ranges_of(op.ranges), to_bf16 = op.rounds_to == DType::kBF16,
            is_gated = op.is_gated,
            bytes = static_cast<size_t>(op.num_sites) * sizeof(float)](const KernelArgs& args) {
      const cudaStream_t stream = as_stream(args.stream);
      const T* x = args.in[0].as<T>();
      const Sites sites = is_gated ? sites_of(args, true) : Sites();
      auto* most = args.out[0].as<uint32_t>();
      if (!has_so_far) {
        TOK_CUDA(cudaMemsetAsync(most, 0, bytes, stream));
      } else {
        TOK_CUDA(cudaMemcpyAsync(most, args.in[1].data, bytes, cudaMemcpyDeviceToDevice, stream));
      }
      const bool is_wide = are_whole(ranges, kSize) && detail::is_aligned(x);
      const auto kernel = is_wide ? amax_ranges<kSize, T> : amax_ranges<1, T>;
      for_range_groups(ranges, blocks_of, [&](const BlockRanges& group, int64_t first, int64_t n) {
        kernel<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(group, first, x, to_bf16, sites,
                                                                  most);
        TOK_CUDA_LAUNCHED();
      });
    };
  });
}

Kernel prepare(const QuantizeRanges& op, const KernelTypes& types, const Setup&) {
  return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
    return by_float8(op.format, [&]<class Format>() {
      return op.has_amax ? encoder<Format, true, T>(op, types)
                         : encoder<Format, false, T>(op, types);
    });
  });
}

}  // namespace tokamak::gpu
