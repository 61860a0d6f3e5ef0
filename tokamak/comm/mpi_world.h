// A world whose ranks are processes that MPI connects.
#pragma once

#include <memory>

#include "tokamak/comm/world.h"

namespace tokamak {

/// Whether this program was built with MPI.
bool has_mpi();

/// Makes the world of two or more ranks; see make_world().
std::unique_ptr<World> make_mpi_world(const LaunchEnvironment& environment, WorldOptions options);

}  // namespace tokamak
