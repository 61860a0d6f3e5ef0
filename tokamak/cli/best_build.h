// A portable build is several programs that differ in the instructions of their kernels alone.
#pragma once

namespace tokamak::cli {

/// Goes on as the program for this CPU's best level, if it is installed and this is another one:
/// tokamak-x86-64-v4-bf16, -v4 or -v3, or tokamak itself for all other CPUs. TOKAMAK_CPU=x86-64-v3
/// names one instead, TOKAMAK_CPU=x86-64-v2 this. Only C is called, so that no instruction of a
/// better CPU runs before.
void run_best_build(char** argv);

}  // namespace tokamak::cli
