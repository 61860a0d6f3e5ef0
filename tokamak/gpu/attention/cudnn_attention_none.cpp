#include "tokamak/core/error.h"
#include "tokamak/gpu/attention/cudnn_attention.h"

namespace tokamak::gpu {

std::string cudnn_version() {
  return "";
}

Kernel prepare_cudnn_attention(const CudnnAttention&, int64_t, Device&) {
  TOK_CHECK(false, "built without cuDNN");
}

}  // namespace tokamak::gpu
