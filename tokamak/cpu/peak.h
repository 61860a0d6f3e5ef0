// What this machine can do at best, for mfu and for `doctor`.
#pragma once

#include "tokamak/core/dtype.h"

namespace tokamak::cpu {

/// FLOP/s of a large square product of `dtype` inputs, the best of a few runs (about 0.3 s); 0
/// without oneDNN.
double measure_gemm_peak(DType dtype);

}  // namespace tokamak::cpu
