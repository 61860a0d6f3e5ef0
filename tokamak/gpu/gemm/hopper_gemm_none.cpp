#include "tokamak/core/error.h"
#include "tokamak/gpu/gemm/hopper_gemm.h"

namespace tokamak::gpu {

HopperGemm::HopperGemm(const GemmShape&, const Device&) {
  TOK_CHECK(false, "built for other GPUs than Hopper");
}

void HopperGemm::run(const GemmOperands&, DeviceStream) const {}

}  // namespace tokamak::gpu
