// `tokamak bench op`: single ops at the shapes of training.
#pragma once

#include "tokamak/cli/verbs.h"

namespace tokamak::cli {

int run_bench_op(Args args);

}  // namespace tokamak::cli
