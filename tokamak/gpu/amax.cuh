// Maxima of magnitudes, taken by kernels of what they store. They are exact in any order, and NaN
// counts as greatest.
#pragma once

#include <type_traits>

#include "tokamak/gpu/dispatch.cuh"

namespace tokamak::gpu {

/// Returns |x| as an integer: integers order magnitudes, and NaN is above all.
__device__ inline uint32_t magnitude_of(float x) {
  return __float_as_uint(x) & 0x7FFFFFFFU;
}

// Whether magnitudes of two neighbours fit a word, which takes one instruction per maximum.
template <class T>
inline constexpr bool kPacksMagnitudes = !kIsHip && std::is_same_v<T, __nv_bfloat16>;

/// Keeps the greater magnitudes of two bf16 neighbours, each as half a word.
__device__ inline uint32_t pair_max(uint32_t most, uint32_t pair) {
#ifdef TOK_HIP
  return most;
#else
  return __vmaxu2(most, pair & 0x7FFF7FFFU);
#endif
}

/// Returns the greatest magnitude of K values.
template <int K, class T>
__device__ inline uint32_t magnitude_of(const T (&x)[K]) {
  if constexpr (kPacksMagnitudes<T> && K % 2 == 0) {
    uint32_t pairs[K / 2];
    memcpy(pairs, x, sizeof(pairs));
    uint32_t most = 0;
#pragma unroll
    for (int k = 0; k < K / 2; ++k) most = pair_max(most, pairs[k]);
    return max(most << 16U, most & 0xFFFF0000U);
  }
  uint32_t most = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) most = max(most, magnitude_of(to<float>(x[k])));
  return most;
}

/// Converts K values. Both halves of a word of bf16 take one instruction each.
template <int K, class T>
__device__ inline void to_floats(const T (&x)[K], float (&into)[K]) {
  if constexpr (kPacksMagnitudes<T> && K % 2 == 0) {
    uint32_t pairs[K / 2];
    memcpy(pairs, x, sizeof(pairs));
#pragma unroll
    for (int k = 0; k < K / 2; ++k) {
      into[2 * k] = __uint_as_float(pairs[k] << 16U);
      into[2 * k + 1] = __uint_as_float(pairs[k] & 0xFFFF0000U);
    }
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) into[k] = to<float>(x[k]);
  }
}

/// The greatest magnitudes of K columns.
template <int K, class T>
struct ColumnMaxima {
  static constexpr bool kPacks = kPacksMagnitudes<T> && K % 2 == 0;
  static constexpr int kWords = kPacks ? K / 2 : K;
  uint32_t most[kWords] = {};

  static __device__ uint32_t merge(uint32_t a, uint32_t b) {
    if constexpr (kPacks) return pair_max(a, b);
    return max(a, b);
  }

  __device__ void add(const T (&x)[K]) {
    if constexpr (kPacks) {
      uint32_t pairs[K / 2];
      memcpy(pairs, x, sizeof(pairs));
#pragma unroll
      for (int k = 0; k < K / 2; ++k) most[k] = pair_max(most[k], pairs[k]);
    } else {
#pragma unroll
      for (int k = 0; k < K; ++k) most[k] = max(most[k], magnitude_of(to<float>(x[k])));
    }
  }

  __device__ uint32_t of(int k) const {
    if constexpr (kPacks) {
      return k % 2 == 0 ? most[k / 2] << 16U : most[k / 2] & 0xFFFF0000U;
    } else {
      return most[k];
    }
  }
};

__device__ inline uint32_t warp_max(uint32_t x, int lanes) {
  for (int d = lanes / 2; d > 0; d /= 2) x = max(x, __shfl_xor_sync(0xFFFFFFFFU, x, d));
  return x;
}

/// Each 16 threads share four words, of each of which one thread in four gets the greatest: thread
/// l that of word l % 16 / 4. This takes 5 exchanges instead of 16. All threads of the warp call
/// it.
__device__ inline uint32_t greatest_of_four(const uint32_t (&x)[4]) {
  const auto from = [](uint32_t value, int d) { return __shfl_xor_sync(0xFFFFFFFFU, value, d); };
  const bool is_upper = (threadIdx.x & 8U) != 0;
  const uint32_t low = max(is_upper ? x[2] : x[0], from(is_upper ? x[0] : x[2], 8));
  const uint32_t high = max(is_upper ? x[3] : x[1], from(is_upper ? x[1] : x[3], 8));
  const bool is_odd = (threadIdx.x & 4U) != 0;
  uint32_t own = max(is_odd ? high : low, from(is_odd ? low : high, 4));
  own = max(own, from(own, 2));
  return max(own, from(own, 1));
}

/// Returns what the threads of word i of greatest_of_four() have in `own`.
template <class T>
__device__ inline T of_word(T own, int i) {
  return __shfl_sync(0xFFFFFFFFU, own, static_cast<int>(threadIdx.x) % 32 / 16 * 16 + i * 4);
}

/// Returns the greatest of a warp's.
__device__ inline uint32_t whole_warp_max(uint32_t x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xFFFFFFFFU, x);
#else
  return warp_max(x, 32);
#endif
}

/// most = max(most, the greatest of the block's). It first looks whether an atomic operation is
/// needed. REQUIRES: blockDim.x is a multiple of 32 and all threads call it, once in a kernel.
__device__ inline void block_max(uint32_t mine, uint32_t* most) {
  __shared__ uint32_t parts[32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  mine = warp_max(mine, 32);
  if (lane == 0) parts[warp] = mine;
  __syncthreads();
  if (warp > 0) return;
  mine = warp_max(lane < static_cast<int>(blockDim.x) / 32 ? parts[lane] : 0, 32);
  if (lane == 0 && mine > *static_cast<volatile uint32_t*>(most)) atomicMax(most, mine);
}

/// Sets maxima before any value; null is nothing to set.
inline void clear_maxima(uint32_t* most, int64_t count, DeviceStream stream) {
  if (most == nullptr) return;
  TOK_CUDA(
      cudaMemsetAsync(most, 0, static_cast<size_t>(count) * sizeof(uint32_t), as_stream(stream)));
}

/// Returns where the maximum goes that a kernel takes, its last output, or null if it takes none.
inline uint32_t* maximum_of(const KernelArgs& args, bool takes_maximum) {
  return takes_maximum ? args.out[args.out.size() - 1].as<uint32_t>() : nullptr;
}

namespace detail {

template <int K, class F>
__global__ void __launch_bounds__(kThreads) for_each_max(int64_t n, F f, uint32_t* most) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  block_max(i < n ? f.template operator()<K>(i * K) : 0, most);
}

}  // namespace detail

/// Does what launch_vectors does. If `most` is not null, stores the greatest magnitude that f
/// returns there.
template <class F, class... P>
void launch_vectors_max(int64_t n, DeviceStream stream, const F& f, uint32_t* most,
                        const P*... pointers) {
  if (most == nullptr) return launch_vectors(n, stream, f, pointers...);
  clear_maxima(most, 1, stream);
  if (n == 0) return;
  constexpr int kSize = Pack<typename F::Element>::kSize;
  if (n % kSize == 0 && (detail::is_aligned(pointers) && ...)) {
    detail::for_each_max<kSize>
        <<<blocks_for(n / kSize), kThreads, 0, as_stream(stream)>>>(n / kSize, f, most);
  } else {
    detail::for_each_max<1><<<blocks_for(n), kThreads, 0, as_stream(stream)>>>(n, f, most);
  }
  TOK_CUDA_LAUNCHED();
}

}  // namespace tokamak::gpu
