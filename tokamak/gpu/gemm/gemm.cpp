#include "tokamak/gpu/gemm/gemm.h"

#include "tokamak/core/error.h"
#include "tokamak/gpu/device_info.h"
#include "tokamak/gpu/gemm/gemm_problem.h"
#include "tokamak/gpu/gemm/gemm_tuner.h"
#include "tokamak/gpu/loaded/library.h"

namespace tokamak::gpu {
namespace {

cudaDataType_t data_type(DType dtype) {
  if (dtype == DType::kBF16) return CUDA_R_16BF;
  if (dtype == DType::kE4M3) return CUDA_R_8F_E4M3;
  if (dtype == DType::kE5M2) return CUDA_R_8F_E5M2;
  TOK_CHECK(dtype == DType::kF32, "cuBLASLt products of {}", name_of(dtype));
  return CUDA_R_32F;
}

cublasLtMatrixLayoutOpaque_t row_major(DType dtype, int64_t rows, int64_t columns, int64_t stride) {
  cublasLtMatrixLayoutOpaque_t layout{};
  TOK_CUBLAS(cublasLtMatrixLayoutInit(&layout, data_type(dtype), static_cast<uint64_t>(columns),
                                      static_cast<uint64_t>(rows), stride));
  return layout;
}

template <class T>
void set(cublasLtMatmulDescOpaque_t& operation, cublasLtMatmulDescAttributes_t name,
         const T& value) {
  TOK_CUBLAS(cublasLtMatmulDescSetAttribute(&operation, name, &value, sizeof(value)));
}

int32_t scale_mode(ScaleGrid grid) {
  switch (grid) {
    case ScaleGrid::kTensor:
      break;
#if CUBLAS_VERSION >= 120800
    case ScaleGrid::kMx:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
#endif
#if CUBLAS_VERSION >= 120900
    case ScaleGrid::kRows:
      return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    case ScaleGrid::kSegments:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case ScaleGrid::kBlocks:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
#else
    default:
      throw SystemError(fmt::format("cuBLASLt {} has no scales by {}; 12.9 has them",
                                    gemm_library_version(), name_of(grid)));
#endif
  }
  return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
}

// Algorithms are searched with an address of the alignment that every later address has.
constexpr uintptr_t kSomeAddress = 16;

void set_scaling(cublasLtMatmulDescOpaque_t& operation, const ScaledGemm& s) {
  set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(s.b_grid));
  set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(s.a_grid));
  set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, kSomeAddress);
  set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, kSomeAddress);
  set(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(s.fast_accumulation));
}

GemmTuner& tuner_of(Device& device) {
  std::shared_ptr<void>& kept = device.gemm_library();
  if (kept == nullptr) kept = std::make_shared<GemmTuner>(device);
  return *static_cast<GemmTuner*>(kept.get());
}

}  // namespace

GemmProblem::GemmProblem(const GemmShape& s)
    : first(row_major(s.in_b(), s.transpose_b ? s.n : s.k, s.transpose_b ? s.k : s.n,
                      s.transpose_b ? s.k : s.n)),
      second(row_major(s.in, s.transpose_a ? s.k : s.m, s.transpose_a ? s.m : s.k, s.row_of_a())),
      result(row_major(s.out, s.m, s.n, s.n)),
      workspace_bytes(s.workspace_bytes) {
  TOK_CUBLAS(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (s.scaled) set_scaling(operation, *s.scaled);
  if (!s.bias) return;
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(s.bias_type()));
  set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, kSomeAddress);
}

cublasStatus_t run(GemmProblem problem, cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo,
                   const GemmOperands& operands, cudaStream_t stream) {
  if (operands.bias != nullptr)
    set(problem.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  if (operands.a_scales != nullptr) {
    set(problem.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.b_scales);
    set(problem.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.a_scales);
  }
  const float alpha = 1.0F;
  const float beta = operands.accumulate ? 1.0F : 0.0F;
  return cublasLtMatmul(handle, &problem.operation, &alpha, operands.b, &problem.first, operands.a,
                        &problem.second, &beta, operands.c, &problem.result, operands.c,
                        &problem.result, &algo, operands.workspace,
                        static_cast<size_t>(problem.workspace_bytes), stream);
}

std::string gemm_library_version() {
  return is_here(CudaLibrary::kCublasLt) ? dotted_version(cublasLtGetVersion()) : "";
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

void Gemm::run(const GemmOperands& operands, DeviceStream stream) const {
  TOK_CUBLAS(gpu::run(impl_->problem, impl_->handle, impl_->algo, operands, as_stream(stream)));
}

}  // namespace tokamak::gpu
