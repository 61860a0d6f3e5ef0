// Quantized values under a delayed scale, in the kernel that computes their values.
#pragma once

#include "tokamak/ops/float8/quantized_rows_gpu.cuh"

namespace tokamak::gpu {

/// Quantized values as they lie, under one scale that is known before; none
/// without `values`.
struct QuantizedUnderDelayed {
  uint8_t* values = nullptr;
  float* inverse = nullptr;
  const float* amax = nullptr;  ///< taken for want of a scale
  Delayed delayed = {};
  bool power_of_two = false;

  template <class Format>
  __device__ float scale() const {
    return delayed.template scale_of<Format>(*amax, power_of_two);
  }

  /// Stores the quantized values of elements [i, i + K), and with the first of all the inverse
  /// scale.
  template <class Format, int K, class T>
  __device__ void store(int64_t i, const T (&v)[K]) const {
    const float s = scale<Format>();
    if (i == 0) *inverse = 1.0F / s;
    store_quantized<Format>(v, s, values + i);
  }
};

namespace detail {

template <class Format>
struct DelayedInverse {
  QuantizedUnderDelayed to;

  __device__ void operator()(int64_t) const { *to.inverse = 1.0F / to.template scale<Format>(); }
};

// Few blocks, so that this takes no time where there is a scale.
template <int K, class F>
__global__ void __launch_bounds__(kThreads) gated_max(int64_t n, F f, Delayed delayed) {
  if (delayed.has_scale()) return;
  uint32_t most = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step)
    most = max(most, f.template operator()<K>(i * K));
  block_max(most, delayed.most);
}

}  // namespace detail

/// The blocks of a pass that does nothing where a table has a scale.
inline constexpr unsigned kGatedBlocks = 512;

/// Stores the inverse scale of no quantized values.
template <class Format>
void store_inverse_of_none(const QuantizedUnderDelayed& to, DeviceStream stream) {
  if (to.values != nullptr) launch_for(1, stream, detail::DelayedInverse<Format>{to});
}

/// Does what launch_vectors_max does if `delayed` has no scale; otherwise only clears its maximum.
template <class F, class... P>
void launch_gated_max(int64_t n, DeviceStream stream, const F& f, const Delayed& delayed,
                      const P*... pointers) {
  constexpr int kSize = Pack<typename F::Element>::kSize;
  clear_maxima(delayed.most, 1, stream);
  if (n == 0) return;
  const bool is_packed = n % kSize == 0 && (detail::is_aligned(pointers) && ...);
  const int64_t count = is_packed ? n / kSize : n;
  const unsigned blocks = std::min(blocks_for(count), kGatedBlocks);
  if (is_packed) {
    detail::gated_max<kSize><<<blocks, kThreads, 0, as_stream(stream)>>>(count, f, delayed);
  } else {
    detail::gated_max<1><<<blocks, kThreads, 0, as_stream(stream)>>>(count, f, delayed);
  }
  TOK_CUDA_LAUNCHED();
}

}  // namespace tokamak::gpu
