// A matmul in cuBLASLt's terms. The library takes column-major matrices, so row-major C = A B is
// given to it as C^T = B^T A^T: B is its first operand.
#pragma once

#include <cublasLt.h>

#include "tokamak/gpu/check.h"
#include "tokamak/gpu/gemm/gemm.h"

namespace tokamak::gpu {

struct GemmProblem {
  explicit GemmProblem(const GemmShape& shape);

  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t first{};   ///< B
  cublasLtMatrixLayoutOpaque_t second{};  ///< A
  cublasLtMatrixLayoutOpaque_t result{};
  int64_t workspace_bytes = 0;
};

/// Takes `problem` by value: cuBLASLt wants writable descriptors, and bias and scales lie in one.
cublasStatus_t run(GemmProblem problem, cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo,
                   const GemmOperands& operands, cudaStream_t stream);

inline void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) fail_call(call, cublasLtGetStatusString(status));
}

}  // namespace tokamak::gpu

#define TOK_CUBLAS(call) ::tokamak::gpu::check((call), #call)
