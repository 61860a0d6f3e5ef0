// The door between the program and its MPI part, which a portable build keeps in a library of its
// own: only runs of several processes load that, and with it libmpi.
#pragma once

#include <memory>
#include <string>

#include "tokamak/comm/world.h"

namespace tokamak {

struct MpiFunctions {
  std::unique_ptr<World> (*make_world)(const LaunchEnvironment&, WorldOptions);
  std::string (*connected_rank)();
  void (*abort_ranks)(int code);
};

}  // namespace tokamak

/// Returns the functions of this MPI. The linker finds it, or dlsym() by this name.
extern "C" const tokamak::MpiFunctions* tokamak_mpi_functions();
