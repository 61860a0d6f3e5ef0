// Matmuls of bf16 on the tile units of Intel CPUs (AMX): 16 x 16 sums of 32 products each.
#pragma once

#include "tokamak/cpu/gemm.h"

namespace tokamak::cpu {

/// Whether this machine has AMX, its system lets this process use it, and run_amx() is faster than
/// oneDNN's matmuls on row-major operands: it is for gradients of weights, and of inputs of many
/// rows, but not for forward matmuls (measured by bench/gemm_bench.cpp).
bool is_for_amx(const GemmShape& shape);

/// Does what Gemm::run does. The bits do not depend on the number of threads.
/// REQUIRES: is_for_amx(shape).
void run_amx(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c,
             bool accumulate);

}  // namespace tokamak::cpu
