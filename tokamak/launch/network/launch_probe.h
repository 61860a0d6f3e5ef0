// The process on each host that tries which others it reaches.
#pragma once

namespace tokamak::launch {

/// `tokamak launch-probe`, started by probe_network(). It speaks lines of ProbeLine.
int run_launch_probe();

}  // namespace tokamak::launch
