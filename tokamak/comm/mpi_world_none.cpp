#include "tokamak/comm/mpi_world.h"
#include "tokamak/core/error.h"

namespace tokamak {

bool has_mpi() {
  return false;
}

std::unique_ptr<World> make_mpi_world(const LaunchEnvironment& environment, WorldOptions) {
  fail("{} started {} ranks, and this program was built without MPI (cmake -DTOK_MPI=ON)",
       environment.source, environment.world_size);
}

std::string connected_rank() {
  return "";
}

void abort_ranks(int) {}

}  // namespace tokamak
