// Attention by cuDNN's fused kernels, with no name of cuDNN in this interface.
#pragma once

#include <string>

#include "tokamak/exec/kernel.h"
#include "tokamak/gpu/device.h"
#include "tokamak/ops/attention/attention.h"

namespace tokamak::gpu {

/// "9.10.2", or "" where this program was built without cuDNN.
std::string cudnn_version();

/// What tells one of cuDNN's graphs from another: bf16 operands, dense or packed; fp32 statistics.
struct CudnnAttention {
  AttentionShape shape;
  float scale = 1.0F;
  bool causal = true;
  bool backward = false;
  bool deterministic = false;  ///< of the backward; the forward always is
  int64_t kv_tokens = 0;       ///< of k and v in memory, of which T of each sample take part; 0: T

  friend auto operator<=>(const CudnnAttention&, const CudnnAttention&) = default;
};

/// The kernel for operands as Attention's or, backward, AttentionGrad's. Equal graphs of one device
/// share a plan; a new one takes up to seconds, and ten more where its candidates are timed: the
/// fastest is kept on disk, as products are (TunerOptions, attention.json). Empty where cuDNN has
/// no plan, and a line on stderr says so, once for each graph. Throws SystemError where cuDNN
/// fails, and where its plan wants more than the `workspace_bytes` that the caller has for it.
Kernel prepare_cudnn_attention(const CudnnAttention& wanted, int64_t workspace_bytes,
                               Device& device);

}  // namespace tokamak::gpu
