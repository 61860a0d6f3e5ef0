// Dense matmuls through cuBLASLt, each with the algorithm that was fastest on this machine, or
// through hipBLASLt.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "tokamak/core/dtype.h"
#include "tokamak/gpu/device.h"
#include "tokamak/ops/float8/grid.h"

namespace tokamak::gpu {

/// How a quantized matmul differs from others. Devices take only quantized values that
/// are dense along k: transpose_b must be the only transpose.
struct ScaledGemm {
  DType in_b = DType::kE4M3;  ///< B's format; A's is GemmShape::in
  ScaleGrid a_grid = ScaleGrid::kTensor;
  ScaleGrid b_grid = ScaleGrid::kTensor;
  bool fast_accumulation = false;
};

/// C[m, n] (+)= op(A)[m, k] op(B)[k, n] (+ bias[n]), all row-major and dense (but for a_stride), on
/// 16-byte addresses and with rows of whole 16-byte words. A is stored [k, m] if transpose_a, B is
/// stored [n, k] if transpose_b. Inputs have type `in`: fp32, bf16, or quantized values that are
/// multiplied by inverse scales. Sums are fp32 (never TF32), the result is `out`, the bias is `in`,
/// or bf16 for quantized values.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  DType in = DType::kF32;
  DType out = DType::kF32;
  bool bias = false;
  int64_t workspace_bytes = 0;  ///< bytes of workspace given to `run`
  int64_t a_stride = 0;         ///< elements from one stored row of A to the next; 0: A is dense
  std::optional<ScaledGemm> scaled = std::nullopt;

  int64_t row_of_a() const { return a_stride > 0 ? a_stride : transpose_a ? m : k; }

  DType in_b() const { return scaled ? scaled->in_b : in; }

  DType bias_type() const { return scaled ? DType::kBF16 : in; }
};

/// The operands that a matmul reads and writes.
struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* a_scales = nullptr;  ///< of quantized values; of scale_type()
  const void* b_scales = nullptr;
  const void* bias = nullptr;
  void* c = nullptr;
  void* workspace = nullptr;
  bool accumulate = false;
};

/// Returns "4096x14336x16384 tn bfloat16 to float32" or "16384x6144x4096 nt float8_e4m3fn, rows, by
/// float8_e4m3fn, rows, to bfloat16 fast" or the like.
std::string to_string(const GemmShape& shape);

/// Returns "12.8.4" or the like, or "" where this program was built without a matmul library.
std::string gemm_library_version();

/// A matmul prepared once, which copies share. `run` is thread-safe.
class Gemm {
 public:
  /// Times algorithms where this shape is new to the machine (GemmTuner). REQUIRES: no
  /// dim is 0; `device` outlives the matmul.
  Gemm(const GemmShape& shape, Device& device);

  void run(const GemmOperands& operands, DeviceStream stream) const;

  /// Does the same for operands without scales.
  void run(const void* a, const void* b, const void* bias, void* c, bool accumulate,
           void* workspace, DeviceStream stream) const {
    run({.a = a, .b = b, .bias = bias, .c = c, .workspace = workspace, .accumulate = accumulate},
        stream);
  }

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace tokamak::gpu
