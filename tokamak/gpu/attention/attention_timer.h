// Timing of kernels of one attention problem on random operands of its real sizes.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "tokamak/gpu/attention/cudnn_attention.h"

namespace tokamak::gpu {

class AttentionTimer {
 public:
  /// Returns false where the kernel was refused.
  using Run = std::function<bool(std::span<void*> operands, void* workspace, cudaStream_t stream)>;

  /// Takes device memory for as long as the timer lives, if there is enough.
  AttentionTimer(Device& device, const CudnnAttention& problem, int64_t workspace_bytes);
  AttentionTimer(const AttentionTimer&) = delete;
  AttentionTimer& operator=(const AttentionTimer&) = delete;
  ~AttentionTimer();

  bool has_memory() const { return memory_ != nullptr; }

  /// Returns parts of each output after one run on outputs that were NaN; nothing if refused.
  /// REQUIRES: has_memory().
  std::vector<std::vector<float>> results(const Run& run);

  /// Returns the seconds of one run; infinity if refused. REQUIRES: has_memory().
  double time(const Run& run);

 private:
  struct Operand {
    int64_t bytes = 0;
    DType dtype = DType::kBF16;
    std::byte* data = nullptr;
  };

  bool run_once(const Run& run);

  std::vector<Operand> operands_;
  size_t num_in_ = 0;
  cudaStream_t stream_;
  std::byte* memory_ = nullptr;
  std::byte* workspace_ = nullptr;
  std::byte* flushed_ = nullptr;
  size_t flush_bytes_ = 0;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

/// Returns the largest relative difference of an output, by the norm; infinity where one has a NaN.
double difference(const std::vector<std::vector<float>>& got,
                  const std::vector<std::vector<float>>& want);

}  // namespace tokamak::gpu
