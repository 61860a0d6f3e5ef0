#include "tokamak/gpu/gemm/gemm_timer.h"

#include <limits>

#include "tokamak/gpu/gemm/tuning.h"

namespace tokamak::gpu {
namespace {

int64_t round_up(int64_t bytes) {
  return (bytes + 511) / 512 * 512;
}

int64_t scale_bytes(ScaleGrid grid, int64_t rows, int64_t columns) {
  const TensorType scales{.dtype = scale_type(grid), .dims = scale_dims(grid, rows, columns)};
  return round_up(scales.numel() * size_of(scales.dtype));
}

void fill_ones(std::byte* memory, int64_t bytes, cudaStream_t stream) {
  const std::vector<float> ones(static_cast<size_t>(bytes) / sizeof(float), 1.0F);
  TOK_CUDA(cudaMemcpyAsync(memory, ones.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                           stream));
  TOK_CUDA(cudaStreamSynchronize(stream));
}

}  // namespace

GemmTimer::GemmTimer(Device& device, cublasLtHandle_t handle, const GemmShape& shape,
                     const GemmProblem& problem)
    : problem_(problem),
      handle_(handle),
      stream_(as_stream(device.stream(0))),
      flush_bytes_(2 * static_cast<size_t>(device.l2_bytes())) {
  const int64_t a =
      round_up((shape.transpose_a ? shape.k : shape.m) * shape.row_of_a() * size_of(shape.in));
  const int64_t b = round_up(shape.k * shape.n * size_of(shape.in_b()));
  const int64_t bias = shape.bias ? round_up(shape.n * size_of(shape.bias_type())) : 0;
  const int64_t c = round_up(shape.m * shape.n * size_of(shape.out));
  const int64_t filled = a + b + bias + c;
  const auto& scaled = shape.scaled;
  const int64_t a_scales = scaled ? scale_bytes(scaled->a_grid, shape.m, shape.k) : 0;
  const int64_t b_scales = scaled ? scale_bytes(scaled->b_grid, shape.n, shape.k) : 0;
  const int64_t scales = a_scales + b_scales;
  const int64_t workspace = round_up(shape.workspace_bytes);
  void* memory = nullptr;
  if (cudaMalloc(&memory, static_cast<size_t>(filled + scales + workspace) + flush_bytes_) !=
      cudaSuccess) {
    cudaGetLastError();  // clears the error
    return;
  }
  memory_ = static_cast<std::byte*>(memory);
  flushed_ = memory_ + filled + scales + workspace;
  // Gradients of weights, the matmuls whose result has another type, mostly accumulate.
  operands_ = {.a = memory_,
               .b = memory_ + a,
               .bias = shape.bias ? memory_ + a + b : nullptr,
               .c = memory_ + a + b + bias,
               .workspace = memory_ + filled + scales,
               .accumulate = scaled ? shape.out == DType::kF32 : shape.in != shape.out};
  if (!scaled) {
    fill_random(memory_, filled, shape.in, stream_);
    return;
  }
  fill_random(memory_, a, shape.in, stream_);
  fill_random(memory_ + a, b, shape.in_b(), stream_);
  fill_random(memory_ + a + b, bias + c, DType::kBF16, stream_);
  if (scaled->a_grid == ScaleGrid::kMx) {
    TOK_CUDA(cudaMemsetAsync(memory_ + filled, 127, static_cast<size_t>(scales), stream_));
  } else {
    fill_ones(memory_ + filled, scales, stream_);
  }
  operands_.a_scales = memory_ + filled;
  operands_.b_scales = memory_ + filled + a_scales;
}

GemmTimer::~GemmTimer() {
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  cudaFree(memory_);
}

cudaEvent_t GemmTimer::event(size_t n) {
  while (events_.size() <= n) {
    cudaEvent_t made = nullptr;
    TOK_CUDA(cudaEventCreateWithFlags(&made, cudaEventDefault));
    events_.push_back(made);
  }
  return events_[n];
}

std::vector<double> GemmTimer::times(std::span<const cublasLtMatmulAlgo_t> algos) {
  std::vector<bool> has_run(algos.size());
  for (size_t i = 0; i < algos.size(); ++i) {
    // Besides flushing the cache, this keeps the device busy until the matmul has been enqueued.
    TOK_CUDA(cudaMemsetAsync(flushed_, 0, flush_bytes_, stream_));
    TOK_CUDA(cudaEventRecord(event(2 * i), stream_));
    has_run[i] = run(problem_, handle_, algos[i], operands_, stream_) == CUBLAS_STATUS_SUCCESS;
    TOK_CUDA(cudaEventRecord(event(2 * i + 1), stream_));
  }
  TOK_CUDA(cudaStreamSynchronize(stream_));
  std::vector<double> seconds(algos.size(), std::numeric_limits<double>::infinity());
  for (size_t i = 0; i < algos.size(); ++i) {
    float ms = 0.0F;
    if (!has_run[i]) continue;
    TOK_CUDA(cudaEventElapsedTime(&ms, event(2 * i), event(2 * i + 1)));
    seconds[i] = static_cast<double>(ms) / 1e3;
  }
  return seconds;
}

}  // namespace tokamak::gpu
