// `tokamak bench matrix`: models x ranks x precision x recompute x CUDA graphs, each row a run.
#pragma once

#include "tokamak/cli/verbs.h"

namespace tokamak::cli {

int run_bench_matrix(Args args);

}  // namespace tokamak::cli
