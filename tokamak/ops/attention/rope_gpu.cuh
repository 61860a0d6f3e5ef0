// The kernel of the rotation of queries and keys.
#pragma once

#include "tokamak/gpu/dispatch.cuh"
#include "tokamak/ops/attention/rope.h"

namespace tokamak::gpu {

/// Return the kernel. With `takes_maximum` the last output is the greatest magnitude of y
/// (gpu/amax.cuh).
Kernel rope_kernel(const Rope& op, const KernelTypes& types, const Setup& setup,
                   bool takes_maximum);
Kernel rope_kernel(const RopeConcat& op, const KernelTypes& types, const Setup& setup,
                   bool takes_maximum);

}  // namespace tokamak::gpu
