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

// The kE elements from x + d on, 0 from D on; kWhole says that all lie below D. A load without a
// condition can be in flight with others.
template <int kE, bool kWhole, class T>
__device__ inline Pack<T, kE* static_cast<int>(sizeof(T))> load_part(const T* x, int d, int64_t D) {
  using Part = Pack<T, kE* static_cast<int>(sizeof(T))>;
  if constexpr (kWhole) {
    return *reinterpret_cast<const Part*>(x + d);
  } else {
    Part part;
#pragma unroll
    for (int e = 0; e < kE; ++e) part.v[e] = d + e < D ? x[d + e] : T{};
    return part;
  }
}

// Attention of kG query heads over the tokens that one warp has seen; a lane has kE elements.
template <int kG, int kE>
struct DecodeState {
  float query[kG][kE];
  float sum[kG][kE] = {};
  float largest[kG];
  float total[kG] = {};

  // Scores of N tokens. All are summed side by side: their chains of shuffles would take longer
  // than the loads.
  template <bool kCaps, int N, class Part>
  __device__ void compute_scores(const Part (&key)[N], float cap, float (&score)[kG][N]) const {
#pragma unroll
    for (int g = 0; g < kG; ++g) {
#pragma unroll
      for (int u = 0; u < N; ++u) {
#pragma unroll
        for (int e = 0; e < kE; ++e) score[g][u] += query[g][e] * to<float>(key[u].v[e]);
      }
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
#pragma unroll
      for (int g = 0; g < kG; ++g) {
#pragma unroll
        for (int u = 0; u < N; ++u) score[g][u] += __shfl_xor_sync(0xFFFFFFFFU, score[g][u], d);
      }
    }
    if constexpr (kCaps) {
#pragma unroll
      for (int g = 0; g < kG; ++g) {
#pragma unroll
        for (int u = 0; u < N; ++u) score[g][u] = cap * tanh(score[g][u] / cap);
      }
    }
  }

  // Adds N tokens; those that `is_inside` refuses weigh nothing.
  template <int N, class Part, class Inside>
  __device__ void add(const float (&score)[kG][N], const Part (&value)[N], Inside is_inside) {
#pragma unroll
    for (int g = 0; g < kG; ++g) {
      float most = largest[g];
#pragma unroll
      for (int u = 0; u < N; ++u) {
        if (is_inside(u) && score[g][u] > most) most = score[g][u];
      }
      const float factor = exp_of(largest[g] - most);
      total[g] *= factor;
      largest[g] = most;
#pragma unroll
      for (int e = 0; e < kE; ++e) sum[g][e] *= factor;
#pragma unroll
      for (int u = 0; u < N; ++u) {
        const float weight = is_inside(u) ? exp_of(score[g][u] - most) : 0.0F;
        total[g] += weight;
#pragma unroll
        for (int e = 0; e < kE; ++e) sum[g][e] += weight * to<float>(value[u].v[e]);
      }
    }
  }
};

// Writes the part of one head from what the warps have: sums of P v, largest score, sum of P.
template <int kG, int kD>
__device__ void join_warps(const float (&sums)[kDecodeWarps][kG][kD],
                           const float (&statistics)[kDecodeWarps][kG][2], int g, int64_t D,
                           float* out) {
  float most = statistics[0][g][0];
#pragma unroll
  for (int w = 1; w < kDecodeWarps; ++w)
    most = statistics[w][g][0] > most ? statistics[w][g][0] : most;
  const bool sees = most != -std::numeric_limits<float>::infinity();
  float factor[kDecodeWarps];
#pragma unroll
  for (int w = 0; w < kDecodeWarps; ++w)
    factor[w] = sees ? exp_of(statistics[w][g][0] - most) : 0.0F;
  for (int d = static_cast<int>(threadIdx.x); d < D; d += 32 * kDecodeWarps) {
    float x = 0.0F;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) x += factor[w] * sums[w][g][d];
    out[d] = x;
  }
  if (threadIdx.x == 0) {
    float all = 0.0F;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) all += factor[w] * statistics[w][g][1];
    out[D] = most;
    out[D + 1] = all;
  }
}

}  // namespace detail

// The parts of up to kG query heads of one key-value head, over one split of its keys. A lane has
// kD / 32 elements of each token, a warp every fourth token of the split; K and V are read once.
template <class T, int kD, int kG, bool kWhole, bool kCaps>
__global__ void __launch_bounds__(32 * kDecodeWarps)
    attention_decode(const Problem p, const T* q, const T* k, const T* v, DecodeParts parts) {
  constexpr int kE = kD / 32;
  constexpr int kAtOnce = 4;
  __shared__ float sums[kDecodeWarps][kG][kD];
  __shared__ float statistics[kDecodeWarps][kG][2];
  wait_for_previous();
  let_next_start();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto block = static_cast<int>(blockIdx.x);
  const int split = block % parts.splits;
  const int64_t kv = block / parts.splits % static_cast<int>(p.K);
  const int64_t b = block / parts.splits / static_cast<int>(p.K);
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kG;
  const int count = static_cast<int>(p.G - first < kG ? p.G - first : kG);
  const int64_t head = b * p.H + kv * p.G + first;
  detail::DecodeState<kG, kE> state;
#pragma unroll
  for (int g = 0; g < kG; ++g) {
    state.largest[g] = -std::numeric_limits<float>::infinity();
    const int at = g < count ? g : 0;
    const auto part = detail::load_part<kE, kWhole>(
        q + b * p.q_step + (kv * p.G + first + at) * p.D, lane * kE, p.D);
#pragma unroll
    for (int e = 0; e < kE; ++e)
      state.query[g][e] = to<float>(part.v[e]) * static_cast<float>(p.scale);
  }
  const int64_t end = p.end(p.length(b), 0);
  const int64_t begin = begin_of(p, end);
  const int each = (static_cast<int>(end - begin) + parts.splits - 1) / parts.splits;
  const int64_t from = begin + static_cast<int64_t>(each) * split;
  const int64_t until = from + each < end ? from + each : end;
  const int64_t base = b * p.T * p.kv_step + kv * p.D;
  for (int64_t t = from + warp; t < until; t += kDecodeWarps * kAtOnce) {
    Pack<T, kE* static_cast<int>(sizeof(T))> key[kAtOnce];
    Pack<T, kE* static_cast<int>(sizeof(T))> value[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int64_t token = t + u * kDecodeWarps;
      const int64_t at = base + (token < until ? token : t) * p.kv_step;
      key[u] = detail::load_part<kE, kWhole>(k + at, lane * kE, p.D);
      value[u] = detail::load_part<kE, kWhole>(v + at, lane * kE, p.D);
    }
    float score[kG][kAtOnce] = {};
    state.template compute_scores<kCaps>(key, static_cast<float>(p.cap), score);
    state.add(score, value, [&](int u) { return t + u * kDecodeWarps < until; });
  }
#pragma unroll
  for (int g = 0; g < kG; ++g) {
#pragma unroll
    for (int e = 0; e < kE; ++e) sums[warp][g][lane * kE + e] = state.sum[g][e];
    if (lane == 0) {
      statistics[warp][g][0] = state.largest[g];
      statistics[warp][g][1] = state.total[g];
    }
  }
  __syncthreads();
  for (int g = 0; g < count; ++g)
    detail::join_warps(sums, statistics, g, p.D, parts.at(head + g, split));
}

// o and lse of a head from its parts; a block for each head.
template <class T>
__global__ void __launch_bounds__(128)
    attention_join_parts(int64_t D, DecodeParts parts, T* o, float* lse) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  __shared__ float factors[kMostDecodeSplits];
  const int64_t head = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  wait_for_previous();
  let_next_start();
  // Each warp has the statistics of all parts, two per lane.
  constexpr int kEach = kMostDecodeSplits / 32;
  float largest[kEach];
  float sums[kEach];
  float most = kNothing;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int s = lane + 32 * k;
    largest[k] = s < parts.splits ? parts.at(head, s)[D] : kNothing;
    sums[k] = s < parts.splits ? parts.at(head, s)[D + 1] : 0.0F;
    most = largest[k] > most ? largest[k] : most;
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFFU, most, d);
    most = other > most ? other : most;
  }
  const bool sees = most != kNothing;
  float total = 0.0F;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const float factor = sees ? detail::exp_of(largest[k] - most) : 0.0F;
    total += factor * sums[k];
    if (threadIdx.x < 32) factors[lane + 32 * k] = factor;
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) total += __shfl_xor_sync(0xFFFFFFFFU, total, d);
  __syncthreads();
  for (int64_t d = threadIdx.x; d < D; d += 128) {
    float sum = 0.0F;
#pragma unroll 8
    for (int s = 0; s < parts.splits; ++s) sum += factors[s] * parts.at(head, s)[d];
    o[head * D + d] = to<T>(sees ? sum / total : 0.0F);
  }
  if (threadIdx.x == 0) lse[head] = sees ? most + detail::log_of(total) : most;
}

template <class T, int kD>
Kernel make_decode(const Attention& op, const KernelTypes& types, const Problem& problem,
                   bool waits) {
  constexpr int kMostHeads = kD == 256 ? 2 : 4;
  const AttentionShape shape = op.shape(types.in);
  return [problem, shape, waits, length = op.inputs().length](const KernelArgs& a) {
    Problem p = problem;
    p.lengths = a.in[length].as<int32_t>();
    p.one_length = a.in[length].numel() == 1;
    const DecodeParts parts{
        .data = static_cast<float*>(a.workspace), .splits = decode_splits(shape.T), .D = p.D};
    const auto launch = [&]<int kG, bool kCaps>() {
      const dim3 blocks(static_cast<unsigned>(p.B * p.K * parts.splits),
                        static_cast<unsigned>((p.G + kG - 1) / kG));
      launch_dependent(waits,
                       p.D == kD ? attention_decode<T, kD, kG, true, kCaps>
                                 : attention_decode<T, kD, kG, false, kCaps>,
                       blocks, 32 * kDecodeWarps, as_stream(a.stream), p, a.in[0].as<T>(),
                       a.in[1].as<T>(), a.in[2].as<T>(), parts);
    };
    const auto launch_heads = [&]<bool kCaps>() {
      if (p.G == 1) {
        launch.template operator()<1, kCaps>();
      } else {
        launch.template operator()<kMostHeads, kCaps>();
      }
    };
    if (p.cap > 0.0) {
      launch_heads.template operator()<true>();
    } else {
      launch_heads.template operator()<false>();
    }
    launch_dependent(waits, attention_join_parts<T>, static_cast<unsigned>(p.B * p.H), 128,
                     as_stream(a.stream), p.D, parts, a.out[0].as<T>(), a.out[1].as<float>());
  };
}

}  // namespace tokamak::gpu
