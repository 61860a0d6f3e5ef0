// The choice of a matmul's cuBLASLt algorithm: the one in the machine's cache, else the fastest of
// many candidates, timed here.
#pragma once

#include <map>
#include <string>

#include "tokamak/gpu/gemm/gemm_problem.h"
#include "tokamak/gpu/gemm/tuning.h"
#include "tokamak/gpu/gemm/tuning_cache.h"

namespace tokamak::gpu {

class GemmTuner {
 public:
  /// `device` must outlive the tuner.
  explicit GemmTuner(Device& device, TunerOptions options = read_tuner_options("gemm.json"));
  GemmTuner(const GemmTuner&) = delete;
  GemmTuner& operator=(const GemmTuner&) = delete;
  ~GemmTuner();

  cublasLtHandle_t handle() const { return handle_; }

  /// Returns an algorithm that fits the shape's workspace. Shapes that differ in the workspace
  /// alone share one if it fits both. Timing allocates device memory of the operands' size; if that
  /// fails, the library's first choice is taken and not kept on disk. Throws SystemError if
  /// cuBLASLt has no algorithm.
  cublasLtMatmulAlgo_t choose(const GemmShape& shape, const GemmProblem& problem);

 private:
  cublasLtMatmulAlgo_t find(const GemmShape& shape, const GemmProblem& problem);

  Device& device_;
  TunerOptions options_;
  TuningCache cache_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<std::string, cublasLtMatmulAlgo_t> chosen_;
};

}  // namespace tokamak::gpu
