// `tokamak bench comm`: how fast this machine's ranks communicate.
#pragma once

#include "tokamak/cli/verbs.h"

namespace tokamak::cli {

int run_bench_comm(Args args);

}  // namespace tokamak::cli
