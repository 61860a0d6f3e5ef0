// The libraries that the program was built with: the loader has found them before main().
#include "tokamak/gpu/loaded/library.h"

namespace tokamak::gpu {

const std::string& why_missing(CudaLibrary) {
  static const std::string nothing;
  return nothing;
}

}  // namespace tokamak::gpu
