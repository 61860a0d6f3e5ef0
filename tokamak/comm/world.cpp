#include "tokamak/comm/world.h"

#include <cstdlib>

#include "tokamak/comm/flight_file.h"
#include "tokamak/comm/mpi_world.h"
#include "tokamak/core/error.h"

namespace tokamak {

std::unique_ptr<World> make_world(const LaunchEnvironment& environment, WorldOptions options) {
  TOK_REQUIRE(environment.why_unconnected.empty(), "{}", environment.why_unconnected);
  if (environment.world_size > 1) return make_mpi_world(environment, options);
  const char* const folder = std::getenv(kFlightFolderVariable);
  return folder == nullptr ? make_single_world() : make_single_world(folder);
}

}  // namespace tokamak
