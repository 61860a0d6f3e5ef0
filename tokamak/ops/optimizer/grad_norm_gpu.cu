#include <limits>

#include "tokamak/gpu/dependent.cuh"
#include "tokamak/gpu/ranges.cuh"
#include "tokamak/gpu/spans.cuh"
#include "tokamak/ops/optimizer/grad_norm.h"

namespace tokamak::gpu {
namespace {

constexpr int64_t kBlock = SumSquares::kBlock;

// sums[b] = weight * sum of x^2 over the b-th of SumSquares::blocks; x is read once.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_block(const __grid_constant__ BlockRanges ranges, int64_t first, const T* x, double* sums) {
  const int64_t block = first + blockIdx.x;
  const BlockRange& range = ranges.all[ranges.range_of(block)];
  const int64_t begin = range.begin + (block - range.first_block) * kBlock;
  const auto n = static_cast<int>(range.end - begin < kBlock ? range.end - begin : kBlock);
  double sum = 0.0;
  for_values<4>(x + begin, n, to<T>(0.0F), [&]<int M>(const T(&values)[M]) {
#pragma unroll
    for (int i = 0; i < M; ++i) {
      const auto value = to<double>(values[i]);
      sum += value * value;
    }
  });
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[block] = range.value * sum;
}

constexpr int kTotalThreads = 1024;

// y (+)= the sum of `sums`: one block, so that the order is fixed.
__global__ void __launch_bounds__(kTotalThreads)
    add_sums(const double* sums, int64_t count, double* y, bool add) {
  wait_for_previous();
  double total = 0.0;
#pragma unroll 8
  for (int64_t b = threadIdx.x; b < count; b += kTotalThreads) total += sums[b];
  total = block_sum(total);
  if (threadIdx.x == 0) *y = add ? *y + total : total;
}

__global__ void clip(const double* sum, const double* loss, const double* limit, double max_norm,
                     double* norm, float* factor) {
  const double root = sqrt(*sum);
  const double wanted = max_norm > 0.0 ? max_norm / (root + 1e-6) : 1.0;
  const bool is_finite = isfinite(root) && (loss == nullptr || isfinite(*loss));
  const bool is_good = is_finite && (limit == nullptr || root <= *limit);
  *norm = root;
  *factor =
      is_good ? static_cast<float>(fmin(wanted, 1.0)) : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace

Kernel prepare(const SumSquares& op, const KernelTypes& types, const Setup& setup) {
  std::vector<BlockRange> ranges;
  for (const SumSquares::WeightRange& r : op.ranges)
    ranges.push_back({.begin = r.begin, .end = r.end, .value = r.weight});
  if (op.ranges.empty()) ranges = {{.end = types.in[0].numel(), .value = 1.0}};
  const auto blocks_of = [](const BlockRange& r) {
    return (r.end - r.begin + kBlock - 1) / kBlock;
  };
  int64_t count = 0;
  for (const BlockRange& r : ranges) count += blocks_of(r);
  const bool waits = can_wait_for_previous(setup);
  return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
    return [=](const KernelArgs& a) {
      auto* sums = static_cast<double*>(a.workspace);
      const cudaStream_t stream = as_stream(a.stream);
      for_range_groups(ranges, blocks_of, [&](const BlockRanges& group, int64_t first, int64_t n) {
        sum_block<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(group, first, a.in[0].as<T>(),
                                                                     sums);
        TOK_CUDA_LAUNCHED();
      });
      launch_dependent(waits, add_sums, 1, kTotalThreads, stream, sums, count,
                       a.out[0].as<double>(), a.accumulate[0]);
    };
  });
}

Kernel prepare(const ClipFactor& op, const KernelTypes&, const Setup&) {
  return [max_norm = op.max_norm](const KernelArgs& a) {
    clip<<<1, 1, 0, as_stream(a.stream)>>>(a.in[0].as<double>(),
                                           a.has(1) ? a.in[1].as<double>() : nullptr,
                                           a.has(2) ? a.in[2].as<double>() : nullptr, max_norm,
                                           a.out[0].as<double>(), a.out[1].as<float>());
    TOK_CUDA_LAUNCHED();
  };
}

}  // namespace tokamak::gpu
