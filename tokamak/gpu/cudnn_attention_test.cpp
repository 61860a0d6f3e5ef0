// Attention by the plan that was timed as the fastest against cuDNN's own first choice. Skips where
// no GPU is visible.
#include "tokamak/gpu/cudnn_attention.h"

#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "tokamak/gpu/attention_timer.h"
#include "tokamak/gpu/backend.h"

namespace tokamak::gpu {
namespace {

std::vector<std::vector<float>> results_of(const CudnnAttention& problem, const char* tune) {
  setenv("TOKAMAK_TUNE", tune, 1);
  Device device(0);
  const int64_t bytes =
      cudnn_attention_bytes(problem.shape, problem.backward, problem.deterministic);
  const Kernel kernel = prepare_cudnn_attention(problem, bytes, device);
  AttentionTimer memory(device, problem, bytes);
  return memory.results([&](std::span<void*> operands, void* workspace, cudaStream_t stream) {
    std::vector<Tensor> in;
    for (void* data : operands) in.push_back({.data = data});
    kernel({.in = in, .workspace = workspace, .stream = stream});
    return true;
  });
}

TEST(CudnnAttention, timed_plans_give_the_results_of_the_first_choice) {
  if (num_devices() == 0) GTEST_SKIP() << why_none();
  const auto folder = std::filesystem::path(::testing::TempDir()) / "tokamak_attention_test";
  std::filesystem::remove_all(folder);
  setenv("TOKAMAK_CACHE", folder.c_str(), 1);
  for (const bool backward : {false, true}) {
    for (const bool deterministic : {false, true}) {
      if (deterministic && !backward) continue;
      const CudnnAttention problem{
          .shape = {.B = 1, .S = 4096, .T = 4096, .H = 16, .K = 4, .D = 64},
          .scale = 0.125F,
          .backward = backward,
          .deterministic = deterministic};
      const auto want = results_of(problem, "0");
      ASSERT_FALSE(want.empty());
      // Timed, then as the file has it.
      for (const char* tune : {"list", "1"})
        EXPECT_LT(difference(results_of(problem, tune), want), 0.015) << backward << tune;
    }
  }
  unsetenv("TOKAMAK_TUNE");
  unsetenv("TOKAMAK_CACHE");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tokamak::gpu
