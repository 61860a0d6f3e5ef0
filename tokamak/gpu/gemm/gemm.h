// Dense matrix products through cuBLASLt, each with the algorithm that was fastest on this machine,
// or through hipBLASLt.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tokamak/core/dtype.h"
#include "tokamak/gpu/device.h"

namespace tokamak::gpu {

/// C[m, n] (+)= op(A)[m, k] op(B)[k, n] (+ bias[n]), all row-major and dense, on 16-byte addresses
/// and with rows of whole 16-byte words. A is stored [k, m] if transpose_a, B is stored [n, k] if
/// transpose_b. Inputs and bias are `in`, fp32 or bf16; sums are fp32 (never TF32); the result is
/// `out`.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  DType in = DType::kF32;
  DType out = DType::kF32;
  bool bias = false;
  int64_t workspace_bytes = 0;  ///< that `run` is given
};

/// As in "4096x14336x16384 tn bfloat16 to float32".
std::string to_string(const GemmShape& shape);

/// "12.8.4", or "" where this program was built without a library of products.
std::string gemm_library_version();

/// A product prepared once; copies share it. Thread-safe to run.
class Gemm {
 public:
  /// Times algorithms where this shape is new to the machine (GemmTuner). REQUIRES: no
  /// dim is 0; `device` outlives the product.
  Gemm(const GemmShape& shape, Device& device);

  void run(const void* a, const void* b, const void* bias, void* c, bool accumulate,
           void* workspace, DeviceStream stream) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace tokamak::gpu
