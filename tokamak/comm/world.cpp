#include "tokamak/comm/world.h"

#include "tokamak/comm/mpi_world.h"

namespace tokamak {

std::unique_ptr<World> make_world(const LaunchEnvironment& environment, WorldOptions options) {
  return environment.world_size == 1 ? make_single_world() : make_mpi_world(environment, options);
}

}  // namespace tokamak
