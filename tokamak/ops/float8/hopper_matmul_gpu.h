// Quantized matmuls, A's scaled by segments and B's by blocks, by this project's own
// kernel for Hopper.
#pragma once

#include "tokamak/gpu/gemm/gemm.h"

namespace tokamak::gpu {

/// A matmul prepared once, which copies share. `run` is thread-safe, takes no workspace and adds in
/// a fixed order.
class HopperMatmul {
 public:
  /// REQUIRES: the device is sm_90, and ScaledMatmul's variant "wgmma_fp8" accepts the shape.
  HopperMatmul(const GemmShape& shape, const Device& device);

  void run(const GemmOperands& operands, DeviceStream stream) const;

 private:
  GemmShape shape_;
  const void* kernel_ = nullptr;
  int blocks_ = 0;
};

}  // namespace tokamak::gpu
