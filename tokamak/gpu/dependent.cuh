// Launches of a kernel whose blocks start while those of the kernel before it still run, so that
// two passes of one op have no gap between them.
#pragma once

#include "tokamak/gpu/dispatch.cuh"
#include "tokamak/gpu/setup.h"

namespace tokamak::gpu {

/// Returns once the previous kernel of the stream has ended. A kernel launched by launch_dependent
/// calls it in every thread before it touches memory.
__device__ inline void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

/// Whether kernels on the device can wait like that.
inline bool can_wait_for_previous(const Setup& setup) {
  return setup.device->arch() >= 90;
}

/// Launches `kernel`, early if `waits` (can_wait_for_previous), else after the previous kernel.
template <class... P, class... A>
void launch_dependent([[maybe_unused]] bool waits, void (*kernel)(P...), unsigned blocks,
                      int threads, cudaStream_t stream, const A&... args) {
#ifndef TOK_HIP
  if (waits) {
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
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

}  // namespace tokamak::gpu
