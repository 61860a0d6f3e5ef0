// Probes which interfaces connect the hosts of a job, before MPI and NCCL start there.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "tokamak/launch/network/reachability.h"

namespace tokamak::launch {

/// Runs each of `commands`, which together start `tokamak launch-probe` on `num_hosts` hosts and
/// pass its standard input and output on. Waits at most 10 s for the hosts to answer and then at
/// most 5 s for what they reach; hosts that do not answer are missing in the result.
NetworkProbe probe_network(const std::vector<std::vector<std::string>>& commands, size_t num_hosts);

/// Probes hosts by the remote shell that mpirun uses.
NetworkProbe probe_hosts(const std::vector<std::string>& hosts);

/// Probes the nodes of this Slurm allocation by srun.
NetworkProbe probe_allocation(size_t num_nodes);

/// Whether the user has chosen an interface for NCCL or MPI by a variable: then all is theirs.
bool has_chosen_interface();

/// Returns the variables that make NCCL, RCCL and Open MPI take this interface.
std::vector<std::pair<std::string, std::string>> interface_variables(const std::string& name);

/// `tokamak launch-probe`, started by probe_network(). It speaks lines of ProbeLine.
int run_launch_probe();

}  // namespace tokamak::launch
