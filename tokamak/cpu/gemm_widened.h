// Matmuls of bf16, computed in fp32, for CPUs without bf16 instructions: oneDNN has none for them.
#pragma once

#include "tokamak/cpu/gemm.h"

namespace tokamak::cpu {

/// Does what Gemm::run does, for bf16 inputs: oneDNN's sgemm multiplies blocks of A and B widened
/// to fp32. Takes about 1 MiB per thread. The bits do not depend on the number of threads.
void run_widened(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c,
                 bool accumulate);

}  // namespace tokamak::cpu
