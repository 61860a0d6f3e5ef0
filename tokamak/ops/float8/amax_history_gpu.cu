#include <algorithm>
#include <cfloat>
#include <cmath>

#include "tokamak/gpu/dispatch.cuh"
#include "tokamak/ops/float8/amax_history.h"

namespace tokamak::gpu {
namespace {

struct Inputs {
  const uint32_t* maxima[StageMaxima::kMostInputs];
  int row[StageMaxima::kMostInputs];
  int count;
};

// As integers, which order magnitudes and have NaN above all.
__global__ void stage(const __grid_constant__ Inputs in, int rows, bool keeps, uint32_t* maxima) {
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += static_cast<int>(blockDim.x)) {
    uint32_t most = keeps ? maxima[row] : 0;
    for (int i = 0; i < in.count; ++i) {
      if (in.row[i] == row) most = max(most, *in.maxima[i]);
    }
    maxima[row] = most;
  }
}

// The largest values of N sites: one of two formats each.
struct Formats {
  static constexpr int kMost = 4096;
  float largest[2];
  uint32_t is_second[kMost / 32];

  __device__ float of(int site) const { return largest[is_second[site / 32] >> (site % 32) & 1U]; }
};

__global__ void count_saturated(const __grid_constant__ Formats formats, int sites, int columns,
                                const float* table, const float* maxima, bool adds, double* count) {
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  int mine = 0;
  for (int i = static_cast<int>(threadIdx.x); i < sites; i += static_cast<int>(blockDim.x)) {
    const float scale = table[static_cast<int64_t>(i) * columns];
    if (scale > 0.0F && maxima[i] * scale > formats.of(i)) ++mine;
  }
  if (mine > 0) atomicAdd(&total, mine);
  __syncthreads();
  if (threadIdx.x == 0) *count = (adds ? *count : 0.0) + total;
}

// A block updates a site's row.
__global__ void __launch_bounds__(kThreads)
    append(const __grid_constant__ Formats formats, int columns, float range, bool most_recent,
           bool power_of_two, const float* maxima, const float* factor, float* table) {
  __shared__ float parts[kThreads];
  const auto site = static_cast<int>(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  const float amax = maxima[site];
  if (!isfinite(*factor) || !(amax > 0.0F) || isinf(amax)) return;
  float* history = table + static_cast<int64_t>(site) * columns + 1;
  const int length = columns - 1;
  float most = amax;
  // From the oldest on, each part moves by one place before the next is read.
  for (int end = length; end > 0; end -= kThreads) {
    const int to = end - kThreads + thread;
    float value = 0.0F;
    if (to >= 0) value = to == 0 ? amax : history[to - 1];
    __syncthreads();
    if (to >= 0) history[to] = value;
    most = fmaxf(most, value);
  }
  parts[thread] = most;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (thread < half) parts[thread] = fmaxf(parts[thread], parts[thread + half]);
    __syncthreads();
  }
  if (thread != 0) return;
  const float largest = formats.of(site) * range;
  const float scale = fminf(largest / (most_recent ? amax : parts[0]), FLT_MAX);
  history[-1] = power_of_two ? __uint_as_float(__float_as_uint(scale) & 0xFF800000U) : scale;
}

std::vector<Formats> formats_of(const std::vector<float>& largest) {
  std::vector<Formats> groups;
  for (size_t i = 0; i < largest.size(); ++i) {
    const size_t at = i % Formats::kMost;
    if (at == 0) groups.push_back({.largest = {largest[0], largest[0]}, .is_second = {}});
    Formats& group = groups.back();
    if (largest[i] == group.largest[0]) continue;
    group.largest[1] = largest[i];
    group.is_second[at / 32] |= 1U << (at % 32);
  }
  return groups;
}

}  // namespace

Kernel prepare(const StageMaxima& op, const KernelTypes& types, const Setup&) {
  const auto rows = static_cast<int>(types.out[0].numel());
  return [row_of = op.row_of, rows](const KernelArgs& a) {
    Inputs in{};
    in.count = static_cast<int>(row_of.size());
    for (int i = 0; i < in.count; ++i) {
      in.maxima[i] = a.in[i].as<uint32_t>();
      in.row[i] = row_of[i];
    }
    stage<<<1, kThreads, 0, as_stream(a.stream)>>>(in, rows, a.accumulate[0],
                                                   a.out[0].as<uint32_t>());
    TOK_CUDA_LAUNCHED();
  };
}

Kernel prepare(const AmaxHistory& op, const KernelTypes& types, const Setup&) {
  const auto columns = static_cast<int>(types.in[0].dims[1]);
  return [=, groups = formats_of(op.largest)](const KernelArgs& a) {
    const cudaStream_t stream = as_stream(a.stream);
    auto left = static_cast<int>(op.largest.size());
    bool adds = a.accumulate[1];
    auto* table = a.out[0].as<float>();
    const auto* maxima = a.in[1].as<float>();
    for (const Formats& formats : groups) {
      const int sites = std::min(left, Formats::kMost);
      count_saturated<<<1, kThreads, 0, stream>>>(formats, sites, columns, table, maxima, adds,
                                                  a.out[1].as<double>());
      TOK_CUDA_LAUNCHED();
      append<<<static_cast<unsigned>(sites), kThreads, 0, stream>>>(
          formats, columns, std::ldexp(1.0F, -op.margin), op.most_recent, op.power_of_two, maxima,
          a.in[2].as<float>(), table);
      TOK_CUDA_LAUNCHED();
      adds = true;
      left -= sites;
      table += static_cast<int64_t>(sites) * columns;
      maxima += sites;
    }
  };
}

}  // namespace tokamak::gpu
