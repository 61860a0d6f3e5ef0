// `tokamak doctor --interfaces`.
#pragma once

#include <string>

namespace tokamak::cli {

/// Prints which interfaces connect the hosts of `hostfile`, or without one the nodes of this Slurm
/// allocation. Writes the variables that make NCCL, RCCL and Open MPI take the fastest into
/// `settings`, if that is not empty, for a shell. Returns 75 where no interface connects all.
int run_doctor_interfaces(const std::string& hostfile, const std::string& settings);

}  // namespace tokamak::cli
