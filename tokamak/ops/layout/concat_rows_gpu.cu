#include "tokamak/gpu/copy.cuh"
#include "tokamak/ops/layout/concat_rows.h"

namespace tokamak::gpu {

Kernel prepare(const ConcatRows&, const KernelTypes& types, const Setup&) {
  std::vector<Copy> copies;
  int64_t to = 0;
  for (size_t k = 0; k < types.in.size(); ++k) {
    copies.push_back({.in = static_cast<int>(k), .bytes = types.in[k].bytes(), .to = to});
    to += types.in[k].bytes();
  }
  return copy_kernel(std::move(copies));
}

}  // namespace tokamak::gpu
