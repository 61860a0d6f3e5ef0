// Attention by cuDNN's fused kernels, with no name of cuDNN in this interface.
#pragma once

#include <string>

#include "tokamak/exec/kernel.h"
#include "tokamak/gpu/device.h"
#include "tokamak/ops/attention/attention.h"

namespace tokamak::gpu {

/// "9.10.2", or "" where this program was built without cuDNN.
std::string cudnn_version();

/// Identifies one of cuDNN's graphs; its operands are bf16, dense or packed, its statistics fp32.
struct CudnnAttention {
  AttentionShape shape;
  float scale = 1.0F;
  bool causal = true;
  int64_t window = 0;  ///< the most keys that a query sees; 0: any number
  double cap = 0.0;    ///< as Attention::cap
  bool backward = false;
  bool deterministic = false;  ///< whether backward is; forward always is
  int64_t kv_tokens = 0;       ///< tokens of k and v in memory, T of them used per sample; 0: T

  friend auto operator<=>(const CudnnAttention&, const CudnnAttention&) = default;
};

/// Returns the kernel for the operands of Attention or, if backward, of AttentionGrad. Equal graphs
/// of one device share a plan; a new one takes up to seconds, and ten more where its candidates are
/// timed: the fastest is kept on disk, as for matmuls (TunerOptions, attention.json). Returns an
/// empty kernel where cuDNN has no plan, which a line on stderr reports once per graph; of capped
/// scores also where its plan wants more than `workspace_bytes`. Throws SystemError if cuDNN fails
/// or if a plan of other scores wants more.
Kernel prepare_cudnn_attention(const CudnnAttention& wanted, int64_t workspace_bytes,
                               Device& device);

}  // namespace tokamak::gpu
