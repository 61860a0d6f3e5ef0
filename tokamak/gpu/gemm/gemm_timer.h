// Timing of cuBLASLt algorithms on random operands of a matmul's real sizes, with a cold L2 cache.
#pragma once

#include <span>
#include <vector>

#include "tokamak/gpu/gemm/gemm_problem.h"

namespace tokamak::gpu {

class GemmTimer {
 public:
  /// Takes device memory for as long as the timer lives, if there is enough.
  GemmTimer(Device& device, cublasLtHandle_t handle, const GemmShape& shape,
            const GemmProblem& problem);
  GemmTimer(const GemmTimer&) = delete;
  GemmTimer& operator=(const GemmTimer&) = delete;
  ~GemmTimer();

  bool has_memory() const { return memory_ != nullptr; }

  /// Returns seconds of one run of each algorithm, run in turn; infinity where cuBLASLt refuses it.
  /// REQUIRES: has_memory().
  std::vector<double> times(std::span<const cublasLtMatmulAlgo_t> algos);

 private:
  cudaEvent_t event(size_t n);

  GemmProblem problem_;
  cublasLtHandle_t handle_;
  cudaStream_t stream_;
  GemmOperands operands_;
  std::byte* memory_ = nullptr;
  std::byte* flushed_ = nullptr;
  size_t flush_bytes_ = 0;
  std::vector<cudaEvent_t> events_;
};

}  // namespace tokamak::gpu
