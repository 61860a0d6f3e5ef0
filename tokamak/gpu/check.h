// Errors of the GPU runtime as SystemError: the call, and what the runtime says.
#pragma once

#include "tokamak/core/dtype.h"
#include "tokamak/gpu/vendor.h"

namespace tokamak::gpu {

/// Throws SystemError "CALL: TEXT".
[[noreturn]] void fail_call(const char* call, const char* text);

/// Throws Bug: `infer` should have refused the type. nvcc cannot compile formatted messages.
[[noreturn]] void fail_dtype(DType dtype);

inline void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail_call(call, cudaGetErrorString(status));
}

}  // namespace tokamak::gpu

#define TOK_CUDA(call) ::tokamak::gpu::check((call), #call)

/// Throws SystemError if the kernel launch before it failed.
#define TOK_CUDA_LAUNCHED() ::tokamak::gpu::check(cudaGetLastError(), "kernel launch")
