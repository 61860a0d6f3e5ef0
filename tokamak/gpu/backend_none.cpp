#include "tokamak/core/error.h"
#include "tokamak/gpu/backend.h"

namespace tokamak::gpu {

int num_devices() {
  return 0;
}

std::string why_none() {
  return "this program was built without CUDA (make build CUDA=1)";
}

std::unique_ptr<Backend> make_backend(const Options&) {
  fail("no GPU backend: {}", why_none());
}

}  // namespace tokamak::gpu
