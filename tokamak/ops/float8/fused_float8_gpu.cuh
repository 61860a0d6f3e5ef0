// The kernels of ops that take maxima of what they yield or make its codes; each lies beside the
// op's own.
#pragma once

#include "tokamak/gpu/amax.cuh"
#include "tokamak/ops/attention/rope.h"
#include "tokamak/ops/elementwise/gelu.h"
#include "tokamak/ops/elementwise/swiglu.h"
#include "tokamak/ops/float8/fused_float8.h"
#include "tokamak/ops/norm/norm.h"

namespace tokamak::gpu {

/// Prepare the kernel of an op that stores all its outputs and, after them, the maximum of
/// output_with_maximum(). `types` has the op's own inputs.
Kernel prepare_with_maximum(const RmsNorm& op, const KernelTypes& types, const Setup& setup);
Kernel prepare_with_maximum(const AddRmsNorm& op, const KernelTypes& types, const Setup& setup);
Kernel prepare_with_maximum(const RmsNormGrad& op, const KernelTypes& types, const Setup& setup);
Kernel prepare_with_maximum(const LayerNorm& op, const KernelTypes& types, const Setup& setup);
Kernel prepare_with_maximum(const AddLayerNorm& op, const KernelTypes& types, const Setup& setup);
Kernel prepare_with_maximum(const LayerNormGrad& op, const KernelTypes& types, const Setup& setup);
Kernel prepare_with_maximum(const Swiglu& op, const KernelTypes& types, const Setup& setup);
Kernel prepare_with_maximum(const SwigluGrad& op, const KernelTypes& types, const Setup& setup);
Kernel prepare_with_maximum(const Gelu& op, const KernelTypes& types, const Setup& setup);
Kernel prepare_with_maximum(const GeluGrad& op, const KernelTypes& types, const Setup& setup);
Kernel prepare_with_maximum(const Rope& op, const KernelTypes& types, const Setup& setup);
Kernel prepare_with_maximum(const RopeConcat& op, const KernelTypes& types, const Setup& setup);

/// Returns where the maximum goes that a kernel takes, or null if it takes none.
inline uint32_t* maximum_of(const KernelArgs& args, bool takes_maximum) {
  return takes_maximum ? args.out[args.out.size() - 1].as<uint32_t>() : nullptr;
}

}  // namespace tokamak::gpu
