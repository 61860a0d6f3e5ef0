// MPI linked into the program.
#include "tokamak/comm/mpi_functions.h"
#include "tokamak/comm/mpi_world.h"

namespace tokamak {

bool has_mpi() {
  return true;
}

std::unique_ptr<World> make_mpi_world(const LaunchEnvironment& environment, WorldOptions options) {
  return tokamak_mpi_functions()->make_world(environment, options);
}

std::string connected_rank() {
  return tokamak_mpi_functions()->connected_rank();
}

void abort_ranks(int code) {
  tokamak_mpi_functions()->abort_ranks(code);
}

}  // namespace tokamak
