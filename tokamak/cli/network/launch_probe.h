// The process on each host that tries which others it reaches.
#pragma once

#include "tokamak/cli/verbs.h"

namespace tokamak::cli {

/// `tokamak launch-probe`, started by probe_network(). It speaks lines of ProbeLine.
int run_launch_probe(Args args);

}  // namespace tokamak::cli
