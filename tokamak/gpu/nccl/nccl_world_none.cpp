#include "tokamak/core/error.h"
#include "tokamak/gpu/nccl/nccl_world.h"

namespace tokamak::gpu {

void* allocate_symmetric(int64_t) {
  return nullptr;
}

void free_symmetric(void*) {}

bool has_copy_engine_gathers() {
  return false;
}

std::string nccl_version() {
  return "";
}

std::unique_ptr<World> make_nccl_world(World& control, Backend&, const NcclOptions&) {
  fail("{} ranks on GPUs, and this program was built without NCCL", control.size());
}

}  // namespace tokamak::gpu
