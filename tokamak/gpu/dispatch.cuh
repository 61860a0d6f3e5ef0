// Dispatch from element types at run time to templates, 16-byte accesses, and loops over elements.
#pragma once

#include <algorithm>
#include <cstring>

#include "tokamak/exec/kernel.h"
#include "tokamak/gpu/check.h"
#include "tokamak/gpu/setup.h"

namespace tokamak::gpu {

namespace detail {

template <class T>
struct AccumOf {
  using Type = float;
};

template <>
struct AccumOf<double> {
  using Type = double;
};

template <>
struct AccumOf<int32_t> {
  using Type = double;
};

template <>
struct AccumOf<int64_t> {
  using Type = double;
};

}  // namespace detail

/// The type that elements of T are computed in: double for double and integers, else float.
template <class T>
using Accum = typename detail::AccumOf<T>::Type;

/// Converts x, rounding to nearest even.
template <class To, class From>
__host__ __device__ inline To to(From x) {
  return static_cast<To>(x);
}

template <>
__host__ __device__ inline __nv_bfloat16 to<__nv_bfloat16, double>(double x) {
  return __nv_bfloat16(static_cast<float>(x));
}

template <>
__host__ __device__ inline double to<double, __nv_bfloat16>(__nv_bfloat16 x) {
  return static_cast<double>(static_cast<float>(x));
}

/// Calls `make.operator()<T>()` for the float type `dtype` and returns its kernel.
template <class Make>
Kernel by_float(DType dtype, Make&& make) {
  switch (dtype) {
    case DType::kF32:
      return make.template operator()<float>();
    case DType::kF64:
      return make.template operator()<double>();
    case DType::kBF16:
      return make.template operator()<__nv_bfloat16>();
    default:
      fail_dtype(dtype);
  }
}

/// Does the same for float types, int32 and int64.
template <class Make>
Kernel by_number(DType dtype, Make&& make) {
  if (dtype == DType::kI32) return make.template operator()<int32_t>();
  if (dtype == DType::kI64) return make.template operator()<int64_t>();
  return by_float(dtype, make);
}

/// The elements of one access.
template <class T, int kBytes = 16>
struct alignas(kBytes) Pack {
  static constexpr int kSize = kBytes / static_cast<int>(sizeof(T));
  T v[kSize];
};

inline constexpr int kThreads = 256;

/// Returns the number of blocks of kThreads for n items, one item per thread.
inline unsigned blocks_for(int64_t n) {
  return static_cast<unsigned>(std::max<int64_t>(1, (n + kThreads - 1) / kThreads));
}

namespace detail {

template <class F>
__global__ void __launch_bounds__(kThreads) for_each(int64_t n, F f) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) f(i);
}

}  // namespace detail

/// Calls f(i) for i in [0, n), in one thread each; F is a struct with a __device__ operator().
template <class F>
void launch_for(int64_t n, DeviceStream stream, const F& f) {
  if (n == 0) return;
  detail::for_each<<<blocks_for(n), kThreads, 0, as_stream(stream)>>>(n, f);
  TOK_CUDA_LAUNCHED();
}

/// Calls f.template operator()<K>(i) for elements [i, i + K), where K is a 16-byte access of
/// F::Element if n and all `pointers` allow it, else 1.
template <class F, class... P>
void launch_vectors(int64_t n, DeviceStream stream, const F& f, const P*... pointers);

namespace detail {

template <class F, int K>
struct Chunks {
  F f;

  __device__ void operator()(int64_t i) const { f.template operator()<K>(i * K); }
};

inline bool is_aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

}  // namespace detail

template <class F, class... P>
void launch_vectors(int64_t n, DeviceStream stream, const F& f, const P*... pointers) {
  constexpr int kSize = Pack<typename F::Element>::kSize;
  if (n % kSize == 0 && (detail::is_aligned(pointers) && ...)) {
    launch_for(n / kSize, stream, detail::Chunks<F, kSize>{f});
  } else {
    launch_for(n, stream, detail::Chunks<F, 1>{f});
  }
}

/// Loads the K elements from p on; K is 1 or makes a whole number of 16-byte accesses.
template <int K, class T>
__device__ inline void load(const T* p, T (&into)[K]) {
  if constexpr (K * sizeof(T) % 16 == 0) {
#pragma unroll
    for (int k = 0; k < K; k += Pack<T>::kSize) {
      const auto pack = *reinterpret_cast<const Pack<T>*>(p + k);
#pragma unroll
      for (int j = 0; j < Pack<T>::kSize; ++j) into[k + j] = pack.v[j];
    }
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) into[k] = p[k];
  }
}

template <int K, class T>
__device__ inline void store(T* p, const T (&from)[K]) {
  if constexpr (K * sizeof(T) % 16 == 0) {
#pragma unroll
    for (int k = 0; k < K; k += Pack<T>::kSize) {
      Pack<T> pack;
#pragma unroll
      for (int j = 0; j < Pack<T>::kSize; ++j) pack.v[j] = from[k + j];
      // It is stored as one word: the compiler may store a struct's parts separately.
      unsigned __int128 word;
      memcpy(&word, &pack, sizeof word);
      *reinterpret_cast<unsigned __int128*>(p + k) = word;
    }
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) p[k] = from[k];
  }
}

/// Returns to each thread the sum over the block's threads, in a fixed order. REQUIRES: blockDim.x
/// is a multiple of 32 and all threads call it.
template <class T>
__device__ inline T block_sum(T x) {
  __shared__ T parts[32];
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, d);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  if (warps == 1) return x;
  __syncthreads();
  if (lane == 0) parts[warp] = x;
  __syncthreads();
  x = lane < warps ? parts[lane] : T{0};
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, d);
  return x;
}

}  // namespace tokamak::gpu
