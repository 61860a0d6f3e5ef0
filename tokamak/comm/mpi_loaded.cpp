// MPI loaded when a launcher has started several ranks: the program itself needs no libmpi.
#include <dlfcn.h>

#include "tokamak/comm/mpi_functions.h"
#include "tokamak/comm/mpi_world.h"
#include "tokamak/core/error.h"
#include "tokamak/core/own_library.h"

namespace tokamak {
namespace {

constexpr const char* kLibrary = "libtokamak_mpi.so";

// Set once, by the thread that makes the world.
const MpiFunctions* loaded = nullptr;

const MpiFunctions& load() {
  const std::filesystem::path path = find_own_library(kLibrary);
  TOK_REQUIRE(
      !path.empty(),
      "cannot find {} next to the executable or in PREFIX/lib/tokamak; runs over MPI need it",
      kLibrary);
  // Global: Open MPI's own plugins look for its symbols.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  TOK_REQUIRE(library != nullptr,
              "MPI cannot be loaded, which several ranks need ({}); install Open MPI: package "
              "openmpi-bin",
              dlerror());
  void* symbol = dlsym(library, "tokamak_mpi_functions");
  TOK_REQUIRE(symbol != nullptr, "{}: not of this build", path.string());
  return *reinterpret_cast<const MpiFunctions* (*)()>(symbol)();
}

}  // namespace

bool has_mpi() {
  return true;
}

std::unique_ptr<World> make_mpi_world(const LaunchEnvironment& environment, WorldOptions options) {
  loaded = &load();
  return loaded->make_world(environment, options);
}

std::string connected_rank() {
  return loaded == nullptr ? "" : loaded->connected_rank();
}

void abort_ranks(int code) {
  if (loaded != nullptr) loaded->abort_ranks(code);
}

}  // namespace tokamak
