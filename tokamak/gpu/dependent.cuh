// Launches of a kernel whose blocks start while those of the kernel before it still run, so that
// there is no gap between two passes of one op, or between the short kernels of a step of few
// tokens.
#pragma once

#include "tokamak/gpu/dispatch.cuh"
#include "tokamak/gpu/setup.h"

namespace tokamak::gpu {

/// Returns once the previous kernel of the stream has ended. A kernel launched by launch_dependent
/// calls it in every thread before it touches memory other than weights.
__device__ inline void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

/// Brings what lies at p, which no kernel in flight writes, into the second cache.
__device__ inline void prefetch([[maybe_unused]] const void* p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

/// Lets the next kernel of the stream start as soon as all blocks of this one have; before, it
/// starts as they end. REQUIRES: this kernel writes no weight, since the next one may read weights
/// before it waits.
__device__ inline void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/// Whether kernels on the device can wait like that.
inline bool can_wait_for_previous(const Setup& setup) {
  return setup.device->arch() >= 90;
}

/// Whether kernels of this many tokens, which take about as long as the gap between two, should
/// wait.
inline bool waits_for_few(const Setup& setup, int64_t tokens) {
  constexpr int64_t kFewTokens = 64;
  return tokens <= kFewTokens && can_wait_for_previous(setup);
}

/// Launches `kernel`, early if `waits` (can_wait_for_previous), else after the previous kernel.
template <class... P, class... A>
void launch_dependent([[maybe_unused]] bool waits, void (*kernel)(P...), dim3 blocks, int threads,
                      cudaStream_t stream, const A&... args) {
#ifndef TOK_HIP
  if (waits) {
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = blocks;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    TOK_CUDA(cudaLaunchKernelEx(&config, kernel, P(args)...));
    return;
  }
#endif
  kernel<<<blocks, threads, 0, stream>>>(args...);
  TOK_CUDA_LAUNCHED();
}

namespace detail {

template <class F>
__global__ void __launch_bounds__(kThreads) for_few(int64_t n, F f) {
  wait_for_previous();
  let_next_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) f(i);
}

}  // namespace detail

/// Does what launch_for does, early and letting the next kernel start. REQUIRES: the device's
/// kernels can wait; f writes no weight.
template <class F>
void launch_for_few(int64_t n, DeviceStream stream, const F& f) {
  if (n == 0) return;
  launch_dependent(true, detail::for_few<F>, blocks_for(n), kThreads, as_stream(stream), n, f);
}

/// Does what launch_vectors does, in the same way.
template <class F, class... P>
void launch_vectors_for_few(int64_t n, DeviceStream stream, const F& f, const P*... pointers) {
  constexpr int kSize = Pack<typename F::Element>::kSize;
  if (n % kSize == 0 && (detail::is_aligned(pointers) && ...)) {
    launch_for_few(n / kSize, stream, detail::Chunks<F, kSize>{f});
  } else {
    launch_for_few(n, stream, detail::Chunks<F, 1>{f});
  }
}

}  // namespace tokamak::gpu
