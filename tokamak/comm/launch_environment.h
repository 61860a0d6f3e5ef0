// Reads what mpirun, srun or another launcher says about the ranks of the job.
#pragma once

#include <functional>
#include <string>

namespace tokamak {

struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  ///< among the ranks of this host
  int local_size = 1;
  std::string host;
  std::string source;  ///< "Open MPI", "Slurm", "PMI", ...; "none" without one that MPI knows
  /// Why this process would run alone, without the others that its launcher started; empty if it
  /// would not.
  std::string why_unconnected;
};

/// Returns the value of an environment variable, or null.
using EnvironmentReader = std::function<const char*(const char* name)>;

/// Reads Open MPI's OMPI_COMM_WORLD_*, Slurm's SLURM_* inside an srun step (a batch script alone is
/// no rank), PMI_RANK, PMI_SIZE with MPI_LOCALRANKID, MPI_LOCALNRANKS, MVAPICH's and jsrun's, in
/// this order; where there are none, looks for launchers whose processes MPI cannot connect, as
/// torchrun and Kubeflow. Throws Error naming the variable where one is missing or not a number in
/// range.
LaunchEnvironment read_launch_environment(const EnvironmentReader& read);

/// Reads the same from this process' environment.
LaunchEnvironment read_launch_environment();

/// Returns "rank 3 of 8, local rank 1 of 2 on node4 (Slurm)".
std::string to_string(const LaunchEnvironment& environment);

}  // namespace tokamak
