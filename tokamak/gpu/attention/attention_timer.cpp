#include "tokamak/gpu/attention/attention_timer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tokamak/core/error.h"
#include "tokamak/gpu/check.h"
#include "tokamak/gpu/gemm/tuning.h"

namespace tokamak::gpu {
namespace {

constexpr int64_t kSampleBytes = int64_t{1} << 20U;  // from an output's begin, and from its end

int64_t round_up_512(int64_t bytes) {
  return (bytes + 511) / 512 * 512;
}

template <class T>
void append(std::vector<float>& values, const std::byte* device, int64_t bytes,
            cudaStream_t stream) {
  std::vector<T> read(static_cast<size_t>(bytes) / sizeof(T));
  TOK_CUDA(cudaMemcpyAsync(read.data(), device, read.size() * sizeof(T), cudaMemcpyDeviceToHost,
                           stream));
  TOK_CUDA(cudaStreamSynchronize(stream));
  for (const T x : read) values.push_back(static_cast<float>(x));
}

}  // namespace

AttentionTimer::AttentionTimer(Device& device, const CudnnAttention& problem,
                               int64_t workspace_bytes)
    : stream_(as_stream(device.stream(0))),
      flush_bytes_(2 * static_cast<size_t>(device.l2_bytes())) {
  const AttentionShape& s = problem.shape;
  const Operand q{.bytes = s.B * s.S * s.H * s.D * 2};
  const Operand kv{.bytes = s.B * std::max(s.T, problem.kv_tokens) * s.K * s.D * 2};
  const Operand lse{.bytes = s.B * s.H * s.S * 4, .dtype = DType::kF32};
  std::vector<Operand> parts{q, kv, kv};
  if (s.is_packed) parts = {{.bytes = q.bytes + 2 * kv.bytes}};
  operands_ = parts;
  if (problem.backward) operands_.insert(operands_.end(), {q, lse, q});
  num_in_ = operands_.size();
  if (problem.backward)
    operands_.insert(operands_.end(), parts.begin(), parts.end());
  else
    operands_.insert(operands_.end(), {q, lse});
  int64_t filled = 0;
  for (const Operand& operand : operands_) filled += round_up_512(operand.bytes);
  const int64_t workspace = round_up_512(workspace_bytes);
  void* memory = nullptr;
  if (cudaMalloc(&memory, static_cast<size_t>(filled + workspace) + flush_bytes_) != cudaSuccess) {
    cudaGetLastError();  // clears the error
    return;
  }
  memory_ = static_cast<std::byte*>(memory);
  workspace_ = memory_ + filled;
  flushed_ = workspace_ + workspace;
  std::byte* next = memory_;
  for (Operand& operand : operands_) {
    operand.data = next;
    next += round_up_512(operand.bytes);
  }
  TOK_CUDA(cudaEventCreateWithFlags(&begin_, cudaEventDefault));
  TOK_CUDA(cudaEventCreateWithFlags(&end_, cudaEventDefault));
  fill_random(memory_, filled, DType::kBF16, stream_);
}

AttentionTimer::~AttentionTimer() {
  if (begin_ != nullptr) cudaEventDestroy(begin_);
  if (end_ != nullptr) cudaEventDestroy(end_);
  cudaFree(memory_);
}

bool AttentionTimer::run_once(const Run& run) {
  std::vector<void*> data;
  for (const Operand& operand : operands_) data.push_back(operand.data);
  return run(data, workspace_, stream_);
}

std::vector<std::vector<float>> AttentionTimer::results(const Run& run) {
  const std::span<const Operand> out = std::span(operands_).subspan(num_in_);
  for (const Operand& operand : out)
    TOK_CUDA(cudaMemsetAsync(operand.data, 0xFF, operand.bytes, stream_));
  if (!run_once(run)) return {};
  std::vector<std::vector<float>> all;
  for (const Operand& operand : out) {
    const int64_t n = std::min(kSampleBytes, operand.bytes);
    std::vector<float>& values = all.emplace_back();
    for (const std::byte* at : {operand.data, operand.data + operand.bytes - n}) {
      if (operand.dtype == DType::kBF16)
        append<BF16>(values, at, n, stream_);
      else
        append<float>(values, at, n, stream_);
    }
  }
  return all;
}

double AttentionTimer::time(const Run& run) {
  // Besides flushing the cache, this keeps the device busy until the kernels have been enqueued.
  TOK_CUDA(cudaMemsetAsync(flushed_, 0, flush_bytes_, stream_));
  TOK_CUDA(cudaEventRecord(begin_, stream_));
  const bool has_run = run_once(run);
  TOK_CUDA(cudaEventRecord(end_, stream_));
  TOK_CUDA(cudaStreamSynchronize(stream_));
  if (!has_run) return std::numeric_limits<double>::infinity();
  float ms = 0.0F;
  TOK_CUDA(cudaEventElapsedTime(&ms, begin_, end_));
  return static_cast<double>(ms) / 1e3;
}

double difference(const std::vector<std::vector<float>>& got,
                  const std::vector<std::vector<float>>& want) {
  TOK_CHECK(got.size() == want.size(), "{} outputs, wanted {}", got.size(), want.size());
  double worst = 0.0;
  for (size_t k = 0; k < got.size(); ++k) {
    double apart = 0.0;
    double all = 0.0;
    for (size_t i = 0; i < got[k].size(); ++i) {
      apart += std::pow(double{got[k][i]} - double{want[k][i]}, 2.0);
      all += std::pow(double{want[k][i]}, 2.0);
    }
    const double relative = apart == 0.0 ? 0.0 : std::sqrt(apart / all);
    worst = std::isfinite(relative) ? std::max(worst, relative)
                                    : std::numeric_limits<double>::infinity();
  }
  return worst;
}

}  // namespace tokamak::gpu
