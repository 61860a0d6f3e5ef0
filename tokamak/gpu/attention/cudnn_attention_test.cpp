// Attention by the plan that was timed as the fastest against cuDNN's own first choice. Skips where
// no GPU is visible.
#include "tokamak/gpu/attention/cudnn_attention.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <tuple>

#include <gtest/gtest.h>

#include "tokamak/core/random.h"
#include "tokamak/gpu/attention/attention_timer.h"
#include "tokamak/gpu/backend.h"
#include "tokamak/gpu/check.h"

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

using Numbers = std::vector<BF16>;

Numbers random_numbers(int64_t count, uint64_t seed) {
  Numbers x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] =
        static_cast<BF16>(static_cast<float>(normal_quantile(to_uniform(random_u32(seed, 0, i)))));
  return x;
}

// Memory of the device with these values, or N bytes of NaN.
class Buffer {
 public:
  explicit Buffer(const Numbers& x) : Buffer(std::ssize(x) * 2) {
    TOK_CUDA(cudaMemcpy(data_, x.data(), bytes_, cudaMemcpyHostToDevice));
  }

  explicit Buffer(int64_t bytes) : bytes_(bytes) {
    TOK_CUDA(cudaMalloc(&data_, bytes));
    TOK_CUDA(cudaMemset(data_, 0xFF, bytes));
  }

  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  ~Buffer() { cudaFree(data_); }

  Tensor tensor() const { return {.data = data_}; }

  Numbers read() const {
    Numbers x(static_cast<size_t>(bytes_ / 2));
    TOK_CUDA(cudaMemcpy(x.data(), data_, bytes_, cudaMemcpyDeviceToHost));
    return x;
  }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// q, k and v of `s`, dense, side by side in each token's row.
Numbers pack(const AttentionShape& s, const std::array<Numbers, 3>& parts) {
  Numbers rows;
  for (int64_t t = 0; t < s.B * s.S; ++t) {
    for (size_t i = 0; i < 3; ++i) {
      const int64_t width = (i == 0 ? s.H : s.K) * s.D;
      const auto at = parts[i].begin() + t * width;
      rows.insert(rows.end(), at, at + width);
    }
  }
  return rows;
}

std::vector<float> as_floats(const Numbers& x) {
  return {x.begin(), x.end()};
}

void run(const CudnnAttention& problem, Device& device, const std::vector<Tensor>& operands) {
  const int64_t bytes =
      cudnn_attention_bytes(problem.shape, problem.backward, problem.deterministic);
  const Kernel kernel = prepare_cudnn_attention(problem, bytes, device);
  ASSERT_TRUE(kernel);
  const Buffer workspace(bytes);
  // The stream does not wait for the default one, which may still fill the operands.
  TOK_CUDA(cudaDeviceSynchronize());
  kernel({.in = operands, .workspace = workspace.tensor().data, .stream = device.stream(0)});
  TOK_CUDA(cudaDeviceSynchronize());
}

// o and the gradients of q, k and v, packed if the problem is.
std::vector<Numbers> both_ways(CudnnAttention problem, Device& device,
                               const std::vector<Numbers>& parts, const Numbers& dy) {
  const AttentionShape& s = problem.shape;
  std::vector<std::unique_ptr<Buffer>> in;
  std::vector<std::unique_ptr<Buffer>> gradients;
  std::vector<Tensor> operands;
  for (const Numbers& part : parts) {
    in.push_back(std::make_unique<Buffer>(part));
    gradients.push_back(std::make_unique<Buffer>(std::ssize(part) * 2));
    operands.push_back(in.back()->tensor());
  }
  const Buffer o(std::ssize(dy) * 2);
  const Buffer lse(s.B * s.H * s.S * 4);
  operands.insert(operands.end(), {o.tensor(), lse.tensor()});
  run(problem, device, operands);
  const Buffer do_(dy);
  operands.push_back(do_.tensor());
  for (const auto& gradient : gradients) operands.push_back(gradient->tensor());
  problem.backward = true;
  run(problem, device, operands);
  std::vector<Numbers> out{o.read()};
  for (const auto& gradient : gradients) out.push_back(gradient->read());
  return out;
}

// q, k and v, dense, of rows of `s`.
std::vector<Numbers> unpack(const AttentionShape& s, const Numbers& rows) {
  std::vector<Numbers> parts(3);
  auto at = rows.begin();
  for (int64_t t = 0; t < s.B * s.S; ++t) {
    for (size_t i = 0; i < 3; ++i) {
      const int64_t width = (i == 0 ? s.H : s.K) * s.D;
      parts[i].insert(parts[i].end(), at, at + width);
      at += width;
    }
  }
  return parts;
}

TEST(CudnnAttention, gives_packed_operands_the_results_of_dense_ones) {
  if (num_devices() == 0) GTEST_SKIP() << why_none();
  const auto folder = std::filesystem::path(::testing::TempDir()) / "tokamak_packed_test";
  std::filesystem::remove_all(folder);
  setenv("TOKAMAK_CACHE", folder.c_str(), 1);
  for (const auto& [S, H, K, D] :
       {std::tuple{8192, 16, 4, 128}, {1024, 25, 25, 64}, {4096, 8, 2, 64}}) {
    CudnnAttention problem{.shape = {.B = 2, .S = S, .T = S, .H = H, .K = K, .D = D},
                           .scale = 0.1F};
    const AttentionShape s = problem.shape;
    const int64_t tokens = s.B * s.S;
    const std::array<Numbers, 3> parts{random_numbers(tokens * s.H * s.D, 1),
                                       random_numbers(tokens * s.K * s.D, 2),
                                       random_numbers(tokens * s.K * s.D, 3)};
    const Numbers dy = random_numbers(tokens * s.H * s.D, 4);
    // cuDNN's first choice, and the one that is timed as the fastest.
    for (const char* tune : {"0", "1"}) {
      setenv("TOKAMAK_TUNE", tune, 1);
      Device device(0);
      problem.shape.is_packed = false;
      const auto want = both_ways(problem, device, {parts.begin(), parts.end()}, dy);
      problem.shape.is_packed = true;
      const auto got = both_ways(problem, device, {pack(s, parts)}, dy);
      // Two engines may round probabilities and results to bf16 differently.
      EXPECT_LT(difference({as_floats(got[0])}, {as_floats(want[0])}), 0x1p-9);
      const auto gradients = unpack(s, got[1]);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_LT(difference({as_floats(gradients[i])}, {as_floats(want[i + 1])}), 4e-3)
            << "tuned " << tune << ", gradient " << i << " of " << H << " heads over " << K;
      }
    }
  }
  unsetenv("TOKAMAK_TUNE");
  unsetenv("TOKAMAK_CACHE");
  std::filesystem::remove_all(folder);
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
