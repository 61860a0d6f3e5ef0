// Gemm by hipBLASLt, which has cuBLASLt's calls but no descriptors by value: its first suggestion
// within the workspace, untimed.
#include <hipblaslt/hipblaslt.h>

#include "tokamak/core/error.h"
#include "tokamak/gpu/check.h"
#include "tokamak/gpu/gemm/gemm.h"

namespace tokamak::gpu {
namespace {

void check(hipblasStatus_t status, const char* call) {
  if (status == HIPBLAS_STATUS_SUCCESS) return;
  fail_call(call, fmt::format("hipBLAS status {}", static_cast<int>(status)).c_str());
}

#define TOK_HIPBLAS(call) check((call), #call)

struct Destroy {
  void operator()(hipblasLtMatmulDesc_t p) const { hipblasLtMatmulDescDestroy(p); }

  void operator()(hipblasLtMatrixLayout_t p) const { hipblasLtMatrixLayoutDestroy(p); }

  void operator()(hipblasLtMatmulPreference_t p) const { hipblasLtMatmulPreferenceDestroy(p); }
};

using Operation = std::unique_ptr<hipblasLtMatmulDescOpaque_t, Destroy>;
using Layout = std::unique_ptr<hipblasLtMatrixLayoutOpaque_t, Destroy>;
using Preference = std::unique_ptr<hipblasLtMatmulPreferenceOpaque_t, Destroy>;

hipDataType data_type(DType dtype) {
  if (dtype == DType::kBF16) return HIP_R_16BF;
  TOK_CHECK(dtype == DType::kF32, "hipBLASLt products of {}", name_of(dtype));
  return HIP_R_32F;
}

// The library takes column-major matrices: row-major C = A B is given as C^T = B^T A^T.
Layout row_major(DType dtype, int64_t rows, int64_t columns, int64_t stride) {
  hipblasLtMatrixLayout_t made = nullptr;
  TOK_HIPBLAS(hipblasLtMatrixLayoutCreate(&made, data_type(dtype), static_cast<uint64_t>(columns),
                                          static_cast<uint64_t>(rows), stride));
  return Layout(made);
}

template <class T>
void set(const Operation& operation, hipblasLtMatmulDescAttributes_t name, const T& value) {
  TOK_HIPBLAS(hipblasLtMatmulDescSetAttribute(operation.get(), name, &value, sizeof(value)));
}

Operation make_operation(const GemmShape& s, const void* bias) {
  hipblasLtMatmulDesc_t made = nullptr;
  TOK_HIPBLAS(hipblasLtMatmulDescCreate(&made, HIPBLAS_COMPUTE_32F, HIP_R_32F));
  Operation operation(made);
  set(operation, HIPBLASLT_MATMUL_DESC_TRANSA, s.transpose_b ? HIPBLAS_OP_T : HIPBLAS_OP_N);
  set(operation, HIPBLASLT_MATMUL_DESC_TRANSB, s.transpose_a ? HIPBLAS_OP_T : HIPBLAS_OP_N);
  if (!s.bias) return operation;
  set(operation, HIPBLASLT_MATMUL_DESC_EPILOGUE, HIPBLASLT_EPILOGUE_BIAS);
  set(operation, HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(s.in));
  set(operation, HIPBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  return operation;
}

hipblasLtHandle_t handle_of(Device& device) {
  std::shared_ptr<void>& kept = device.gemm_library();
  if (kept == nullptr) {
    hipblasLtHandle_t made = nullptr;
    TOK_HIPBLAS(hipblasLtCreate(&made));
    kept = std::shared_ptr<void>(made, [](void* handle) { hipblasLtDestroy(handle); });
  }
  return kept.get();
}

}  // namespace

std::string gemm_library_version() {
  return fmt::format("{}.{}.{}", HIPBLASLT_VERSION_MAJOR, HIPBLASLT_VERSION_MINOR,
                     HIPBLASLT_VERSION_PATCH);
}

struct Gemm::Impl {
  Impl(const GemmShape& s, Device& device)
      : shape(s),
        handle(handle_of(device)),
        first(row_major(s.in, s.transpose_b ? s.n : s.k, s.transpose_b ? s.k : s.n,
                        s.transpose_b ? s.k : s.n)),
        second(row_major(s.in, s.transpose_a ? s.k : s.m, s.transpose_a ? s.m : s.k, s.row_of_a())),
        result(row_major(s.out, s.m, s.n, s.n)),
        algo(suggest()) {}

  hipblasLtMatmulAlgo_t suggest() const {
    hipblasLtMatmulPreference_t made = nullptr;
    TOK_HIPBLAS(hipblasLtMatmulPreferenceCreate(&made));
    const Preference preference(made);
    const auto bytes = static_cast<uint64_t>(shape.workspace_bytes);
    TOK_HIPBLAS(hipblasLtMatmulPreferenceSetAttribute(
        made, HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)));
    hipblasLtMatmulHeuristicResult_t suggested{};
    int found = 0;
    const hipblasStatus_t status = hipblasLtMatmulAlgoGetHeuristic(
        handle, make_operation(shape, nullptr).get(), first.get(), second.get(), result.get(),
        result.get(), made, 1, &suggested, &found);
    if (status != HIPBLAS_STATUS_SUCCESS || found == 0 || suggested.workspaceSize > bytes)
      throw SystemError(fmt::format("hipBLASLt has no algorithm for {}", to_string(shape)));
    return suggested.algo;
  }

  GemmShape shape;
  hipblasLtHandle_t handle;
  Layout first;   // B
  Layout second;  // A
  Layout result;
  hipblasLtMatmulAlgo_t algo;
};

Gemm::Gemm(const GemmShape& shape, Device& device)
    : impl_(std::make_shared<const Impl>(shape, device)) {}

void Gemm::run(const GemmOperands& o, DeviceStream stream) const {
  // Made anew for each run: the bias lies in it, and several threads may run one matmul.
  const Operation operation = make_operation(impl_->shape, o.bias);
  const float alpha = 1.0F;
  const float beta = o.accumulate ? 1.0F : 0.0F;
  TOK_HIPBLAS(hipblasLtMatmul(
      impl_->handle, operation.get(), &alpha, o.b, impl_->first.get(), o.a, impl_->second.get(),
      &beta, o.c, impl_->result.get(), o.c, impl_->result.get(), &impl_->algo, o.workspace,
      static_cast<size_t>(impl_->shape.workspace_bytes), as_stream(stream)));
}

}  // namespace tokamak::gpu
