#include "tokamak/gpu/gemm/gemm.h"

#include "tokamak/core/error.h"
#include "tokamak/gpu/device_info.h"
#include "tokamak/gpu/gemm/gemm_problem.h"
#include "tokamak/gpu/gemm/gemm_tuner.h"

namespace tokamak::gpu {
namespace {

cudaDataType_t data_type(DType dtype) {
  if (dtype == DType::kBF16) return CUDA_R_16BF;
  TOK_CHECK(dtype == DType::kF32, "cuBLASLt products of {}", name_of(dtype));
  return CUDA_R_32F;
}

cublasLtMatrixLayoutOpaque_t row_major(DType dtype, int64_t rows, int64_t columns) {
  cublasLtMatrixLayoutOpaque_t layout{};
  TOK_CUBLAS(cublasLtMatrixLayoutInit(&layout, data_type(dtype), static_cast<uint64_t>(columns),
                                      static_cast<uint64_t>(rows), columns));
  return layout;
}

template <class T>
void set(cublasLtMatmulDescOpaque_t& operation, cublasLtMatmulDescAttributes_t name,
         const T& value) {
  TOK_CUBLAS(cublasLtMatmulDescSetAttribute(&operation, name, &value, sizeof(value)));
}

GemmTuner& tuner_of(Device& device) {
  std::shared_ptr<void>& kept = device.gemm_library();
  if (kept == nullptr) kept = std::make_shared<GemmTuner>(device);
  return *static_cast<GemmTuner*>(kept.get());
}

}  // namespace

GemmProblem::GemmProblem(const GemmShape& s)
    : first(row_major(s.in, s.transpose_b ? s.n : s.k, s.transpose_b ? s.k : s.n)),
      second(row_major(s.in, s.transpose_a ? s.k : s.m, s.transpose_a ? s.m : s.k)),
      result(row_major(s.out, s.m, s.n)),
      workspace_bytes(s.workspace_bytes) {
  TOK_CUBLAS(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (!s.bias) return;
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(s.in));
  // Algorithms are looked for with an address of the alignment that every later one has.
  set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, uintptr_t{16});
}

cublasStatus_t run(GemmProblem problem, cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo,
                   const GemmOperands& operands, cudaStream_t stream) {
  if (operands.bias != nullptr)
    set(problem.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  const float alpha = 1.0F;
  const float beta = operands.accumulate ? 1.0F : 0.0F;
  return cublasLtMatmul(handle, &problem.operation, &alpha, operands.b, &problem.first, operands.a,
                        &problem.second, &beta, operands.c, &problem.result, operands.c,
                        &problem.result, &algo, operands.workspace,
                        static_cast<size_t>(problem.workspace_bytes), stream);
}

std::string gemm_library_version() {
  return dotted_version(cublasLtGetVersion());
}

struct Gemm::Impl {
  Impl(const GemmShape& shape, GemmTuner& tuner)
      : problem(shape), handle(tuner.handle()), algo(tuner.choose(shape, problem)) {}

  GemmProblem problem;
  cublasLtHandle_t handle;
  cublasLtMatmulAlgo_t algo;
};

Gemm::Gemm(const GemmShape& shape, Device& device)
    : impl_(std::make_shared<const Impl>(shape, tuner_of(device))) {}

void Gemm::run(const void* a, const void* b, const void* bias, void* c, bool accumulate,
               void* workspace, DeviceStream stream) const {
  const GemmOperands operands{
      .a = a, .b = b, .bias = bias, .c = c, .workspace = workspace, .accumulate = accumulate};
  TOK_CUBLAS(gpu::run(impl_->problem, impl_->handle, impl_->algo, operands, as_stream(stream)));
}

}  // namespace tokamak::gpu
