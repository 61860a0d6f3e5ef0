// Products of bf16 for CPUs without instructions for it, for which oneDNN has none: in fp32.
#pragma once

#include "tokamak/cpu/gemm.h"

namespace tokamak::cpu {

/// As Gemm::run, for inputs of bf16: blocks of A and B are widened to fp32 and multiplied by
/// oneDNN's sgemm. Takes about 1 MiB a thread. The bits do not depend on the number of threads.
void run_widened(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c,
                 bool accumulate);

}  // namespace tokamak::cpu
