#include "tokamak/core/error.h"
#include "tokamak/ops/float8/hopper_matmul_gpu.h"

namespace tokamak::gpu {

HopperMatmul::HopperMatmul(const GemmShape&, const Device&) {
  TOK_CHECK(false, "built for other GPUs than Hopper");
}

void HopperMatmul::run(const GemmOperands&, DeviceStream) const {}

}  // namespace tokamak::gpu
