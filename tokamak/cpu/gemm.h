// Dense matmuls at the machine's rate, by oneDNN behind a plain interface.
#pragma once

#include <memory>

#include "tokamak/core/dtype.h"

namespace tokamak::cpu {

/// C[m, n] (+)= op(A)[m, k] op(B)[k, n] (+ bias[n]), all row-major and dense (but for a_stride). A
/// is stored [k, m] if transpose_a, B is stored [n, k] if transpose_b. Inputs and bias have type
/// `in`, the result has type `out`; sums are fp32.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  DType in = DType::kF32;
  DType out = DType::kF32;
  bool bias = false;
  int64_t a_stride = 0;  ///< elements from one stored row of A to the next; 0: A is dense

  int64_t row_of_a() const { return a_stride > 0 ? a_stride : transpose_a ? m : k; }
};

/// A matmul prepared once, which copies share. `run` is thread-safe.
class Gemm {
 public:
  explicit Gemm(const GemmShape& shape);

  void run(const void* a, const void* b, const void* bias, void* c, bool accumulate) const;

  /// Whether this build has oneDNN.
  static bool is_available();

  /// Returns oneDNN's number of the instruction set that its matmuls use (ONEDNN_MAX_CPU_ISA
  /// bounds it), or "none".
  static std::string instruction_set();

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace tokamak::cpu
