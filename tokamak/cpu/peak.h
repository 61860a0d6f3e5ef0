// This machine's peak rate, for mfu and for `doctor`.
#pragma once

#include <cstdint>

#include "tokamak/core/dtype.h"

namespace tokamak::cpu {

/// Measures FLOP/s of a square matmul of `dtype` inputs, the best of the runs in `seconds`, three
/// at least; 0 without oneDNN.
double measure_gemm_peak(DType dtype, int64_t size = 1536, double seconds = 0.3);

}  // namespace tokamak::cpu
