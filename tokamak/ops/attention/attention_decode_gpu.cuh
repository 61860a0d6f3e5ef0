// Attention of one query per sample over a KV cache: bound by reading the cache, so the keys of a
// head are split over blocks.
#pragma once

#include "tokamak/gpu/dependent.cuh"
#include "tokamak/ops/attention/attention_decode.h"
#include "tokamak/ops/attention/attention_tile_gpu.cuh"

namespace tokamak::gpu {

inline constexpr int kDecodeWarps = 4;

/// A split's partial result of one head: D sums of P v, then the largest score and the sum of P,
/// both by that score.
struct DecodeParts {
  float* data;
  int splits;
  int64_t D;

  __device__ float* at(int64_t head, int split) const {
    return data + (head * splits + split) * (D + 2);
  }
};

namespace detail {

// The kE elements from x + d on, 0 from D on.
template <int kE, class T>
__device__ inline void load_part(const T* x, int d, int64_t D, float (&into)[kE]) {
  if (d + kE <= D && D % kE == 0) {
    const auto pack = *reinterpret_cast<const Pack<T, kE* static_cast<int>(sizeof(T))>*>(x + d);
#pragma unroll
    for (int e = 0; e < kE; ++e) into[e] = to<float>(pack.v[e]);
    return;
  }
#pragma unroll
  for (int e = 0; e < kE; ++e) into[e] = d + e < D ? to<float>(x[d + e]) : 0.0F;
}

}  // namespace detail

// The parts of up to kG query heads of one key-value head, over one split of its keys. A lane has
// kD / 32 elements of each token, a warp every fourth token of the split; K and V are read once.
template <class T, int kD, int kG>
__global__ void __launch_bounds__(32 * kDecodeWarps)
    attention_decode(const Problem p, const T* q, const T* k, const T* v, DecodeParts parts) {
  constexpr int kE = kD / 32;
  constexpr int kAtOnce = 4;
  __shared__ float sums[kDecodeWarps][kG][kD];
  __shared__ float statistics[kDecodeWarps][kG][2];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int split = static_cast<int>(blockIdx.x) % parts.splits;
  const int64_t kv = static_cast<int64_t>(blockIdx.x) / parts.splits % p.K;
  const int64_t b = static_cast<int64_t>(blockIdx.x) / parts.splits / p.K;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kG;
  const int count = static_cast<int>(p.G - first < kG ? p.G - first : kG);
  const int64_t head = b * p.H + kv * p.G + first;
  float query[kG][kE];
  float sum[kG][kE] = {};
  float largest[kG];
  float total[kG] = {};
#pragma unroll
  for (int g = 0; g < kG; ++g) {
    largest[g] = -std::numeric_limits<float>::infinity();
    const int at = g < count ? g : 0;
    detail::load_part<kE>(q + b * p.q_step + (kv * p.G + first + at) * p.D, lane * kE, p.D,
                          query[g]);
#pragma unroll
    for (int e = 0; e < kE; ++e) query[g][e] *= static_cast<float>(p.scale);
  }
  const int64_t end = p.end(p.length(b), 0);
  const int64_t begin = begin_of(p, end);
  const int64_t from = begin + (end - begin) * split / parts.splits;
  const int64_t until = begin + (end - begin) * (split + 1) / parts.splits;
  const int64_t base = b * p.T * p.kv_step + kv * p.D;
  for (int64_t t = from + warp; t < until; t += kDecodeWarps * kAtOnce) {
    float key[kAtOnce][kE];
    float value[kAtOnce][kE];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int64_t token = t + u * kDecodeWarps;
      const int64_t at = base + (token < until ? token : t) * p.kv_step;
      detail::load_part<kE>(k + at, lane * kE, p.D, key[u]);
      detail::load_part<kE>(v + at, lane * kE, p.D, value[u]);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (t + u * kDecodeWarps >= until) break;
#pragma unroll
      for (int g = 0; g < kG; ++g) {
        float score = 0.0F;
#pragma unroll
        for (int e = 0; e < kE; ++e) score += query[g][e] * key[u][e];
#pragma unroll
        for (int d = 16; d > 0; d /= 2) score += __shfl_xor_sync(0xFFFFFFFFU, score, d);
        const float most = score > largest[g] ? score : largest[g];
        const float factor = detail::exp_of(largest[g] - most);
        const float weight = detail::exp_of(score - most);
        total[g] = total[g] * factor + weight;
        largest[g] = most;
#pragma unroll
        for (int e = 0; e < kE; ++e) sum[g][e] = sum[g][e] * factor + weight * value[u][e];
      }
    }
  }
#pragma unroll
  for (int g = 0; g < kG; ++g) {
#pragma unroll
    for (int e = 0; e < kE; ++e) sums[warp][g][lane * kE + e] = sum[g][e];
    if (lane == 0) {
      statistics[warp][g][0] = largest[g];
      statistics[warp][g][1] = total[g];
    }
  }
  __syncthreads();
  for (int g = 0; g < count; ++g) {
    float most = statistics[0][g][0];
#pragma unroll
    for (int w = 1; w < kDecodeWarps; ++w)
      most = statistics[w][g][0] > most ? statistics[w][g][0] : most;
    const bool sees = most != -std::numeric_limits<float>::infinity();
    float factor[kDecodeWarps];
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w)
      factor[w] = sees ? detail::exp_of(statistics[w][g][0] - most) : 0.0F;
    float* const out = parts.at(head + g, split);
    for (int d = static_cast<int>(threadIdx.x); d < p.D; d += 32 * kDecodeWarps) {
      float x = 0.0F;
#pragma unroll
      for (int w = 0; w < kDecodeWarps; ++w) x += factor[w] * sums[w][g][d];
      out[d] = x;
    }
    if (threadIdx.x == 0) {
      float all = 0.0F;
#pragma unroll
      for (int w = 0; w < kDecodeWarps; ++w) all += factor[w] * statistics[w][g][1];
      out[p.D] = most;
      out[p.D + 1] = all;
    }
  }
}

// o and lse of a head from its parts; a block for each head.
template <class T>
__global__ void __launch_bounds__(128)
    attention_join_parts(int64_t D, DecodeParts parts, T* o, float* lse) {
  const int64_t head = blockIdx.x;
  wait_for_previous();
  float most = -std::numeric_limits<float>::infinity();
  for (int s = 0; s < parts.splits; ++s) {
    const float x = parts.at(head, s)[D];
    most = x > most ? x : most;
  }
  const bool sees = most != -std::numeric_limits<float>::infinity();
  float total = 0.0F;
  for (int s = 0; sees && s < parts.splits; ++s)
    total += detail::exp_of(parts.at(head, s)[D] - most) * parts.at(head, s)[D + 1];
  for (int64_t d = threadIdx.x; d < D; d += 128) {
    float sum = 0.0F;
    for (int s = 0; sees && s < parts.splits; ++s)
      sum += detail::exp_of(parts.at(head, s)[D] - most) * parts.at(head, s)[d];
    o[head * D + d] = to<T>(sees ? sum / total : 0.0F);
  }
  if (threadIdx.x == 0) lse[head] = sees ? most + detail::log_of(total) : most;
}

template <class T, int kD>
Kernel make_decode(const AttentionShape& shape, const Problem& problem, bool waits) {
  constexpr int kMostHeads = kD == 256 ? 2 : 4;
  return [problem, shape, waits](const KernelArgs& a) {
    Problem p = problem;
    p.lengths = a.in[3].as<int32_t>();
    p.one_length = a.in[3].numel() == 1;
    const DecodeParts parts{
        .data = static_cast<float*>(a.workspace), .splits = decode_splits(shape.T), .D = p.D};
    const auto launch = [&]<int kG>() {
      const dim3 blocks(static_cast<unsigned>(p.B * p.K * parts.splits),
                        static_cast<unsigned>((p.G + kG - 1) / kG));
      attention_decode<T, kD, kG><<<blocks, 32 * kDecodeWarps, 0, as_stream(a.stream)>>>(
          p, a.in[0].as<T>(), a.in[1].as<T>(), a.in[2].as<T>(), parts);
      TOK_CUDA_LAUNCHED();
    };
    if (p.G == 1) {
      launch.template operator()<1>();
    } else {
      launch.template operator()<kMostHeads>();
    }
    launch_dependent(waits, attention_join_parts<T>, static_cast<unsigned>(p.B * p.H), 128,
                     as_stream(a.stream), p.D, parts, a.out[0].as<T>(), a.out[1].as<float>());
  };
}

}  // namespace tokamak::gpu
