// The kernel side of ops/row_sums.h: gradients of norms, whose parameters' gradients are sums over
// rows.
#pragma once

#include <cstring>

#include "tokamak/gpu/dependent.cuh"
#include "tokamak/gpu/row_stream.cuh"
#include "tokamak/gpu/rows.cuh"
#include "tokamak/ops/row_sums.h"

namespace tokamak::gpu {

/// Computes dx (+)= and F::kSums sums over rows from x, w and dy. `f.statistics(row, D)` reads a
/// row by `row.each(function of x, w, dy)`, uses its first x and adds over its threads by
/// `row.sum(array)`; `f.apply(statistics, x, w, dy, sums)` adds an element to its column's sums and
/// returns dx before rounding. Reads x and dy (and dx) and writes dx once; a second kernel adds the
/// blocks' sums. `waits` is can_wait_for_previous(); `streams` is the result of prepare_stream<F>()
/// if the caller has called it. With `y`, which F::emit then makes, returns whether y was written:
/// it is not where rows are too long or odd. With `most` it stores the greatest magnitude of dx
/// there.
template <class F>
bool launch_row_sums(const F& f, int64_t N, int64_t D, const KernelArgs& args, bool waits,
                     bool streams = false, typename F::Element* y = nullptr,
                     uint32_t* most = nullptr);

namespace detail {

// x, dy and the old dx of one thread's part of a row, in whole registers: each element of 2 bytes
// would take one.
template <int P>
struct RowPart {
  uint4 x[P];
  uint4 dy[P];
  uint4 dx[P];
};

template <class T>
__device__ inline void unpack(const uint4& from, T (&into)[Pack<T>::kSize]) {
  memcpy(into, &from, sizeof(from));
}

template <int P, class T>
struct HeldRow {
  using A = Accum<T>;
  static constexpr int K = Pack<T>::kSize;
  const RowPart<P>& part;
  const uint4 (&weights)[P];
  A first;
  int D;
  int group;
  int& parity;

  template <class Body>
  __device__ void each(Body&& body) const {
    const int member = static_cast<int>(threadIdx.x) % group;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      if ((p * group + member) * K >= D) continue;
      T x[K];
      T w[K];
      T dy[K];
      unpack<T>(part.x[p], x);
      unpack<T>(weights[p], w);
      unpack<T>(part.dy[p], dy);
#pragma unroll
      for (int k = 0; k < K; ++k) body(to<A>(x[k]), to<A>(w[k]), to<A>(dy[k]));
    }
  }

  template <int S>
  __device__ void sum(A (&sums)[S]) const {
    bool is_done = false;
    if constexpr (S == 4) {
      if (group >= 32) sums_of_warps(sums, group, parity);
      is_done = group >= 32;
    }
    if (!is_done) group_sums(sums, group, parity);
    parity ^= 1;
  }
};

template <class T>
struct ReadRow {
  using A = Accum<T>;
  const T* x;
  const T* w;
  const T* dy;
  A first;
  int D;

  template <class Body>
  __device__ void each(Body&& body) const {
    for (int d = static_cast<int>(threadIdx.x); d < D; d += kThreads)
      body(to<A>(x[d]), to<A>(w[d]), to<A>(dy[d]));
  }

  template <int S>
  __device__ void sum(A (&sums)[S]) const {
#pragma unroll
    for (int s = 0; s < S; ++s) sums[s] = block_sum(sums[s]);
  }
};

// Block b takes the b-th group of rows out of each kGpuRowBlocks, one row per group of threads. The
// next row is in flight while one is worked on (kAhead); the sums stay in registers.
template <int P, int kAhead, bool kAdds, bool kEmits, int kMost, class T, class F>
__global__ void __launch_bounds__(kMost, kMost < 512 ? 2 : 1)
    held_rows(F f, const T* x, const T* w, const T* dy, T* dx, T* y, Accum<T>* partial, int64_t N,
              int D, int group, uint32_t* most_of_all) {
  using A = Accum<T>;
  constexpr int K = Pack<T>::kSize;
  const int member = static_cast<int>(threadIdx.x) % group;
  const int rows = static_cast<int>(blockDim.x) / group;
  const int64_t step = static_cast<int64_t>(gridDim.x) * rows;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * rows;
  const int64_t mine = static_cast<int>(threadIdx.x) / group;
  const auto fetch = [&](int64_t n, RowPart<P>& into) {
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int d = (p * group + member) * K;
      into.x[p] = into.dy[p] = uint4{};
      if (n >= N || d >= D) continue;
      if constexpr (kAdds) into.dx[p] = *reinterpret_cast<const uint4*>(dx + n * D + d);
      into.x[p] = *reinterpret_cast<const uint4*>(x + n * D + d);
      into.dy[p] = *reinterpret_cast<const uint4*>(dy + n * D + d);
    }
  };
  uint4 weights[P];
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int d = (p * group + member) * K;
    weights[p] = d < D ? *reinterpret_cast<const uint4*>(w + d) : uint4{};
  }
  A sums[P][K][F::kSums] = {};
  RowPart<P> parts[kAhead + 1];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) fetch(first + mine + i * step, parts[i]);
  int parity = 0;
  uint32_t most = 0;
  for (int64_t base = first; base < N; base += step) {
    const int64_t n = base + mine;
    fetch(n + kAhead * step, parts[kAhead]);
    const RowPart<P>& part = parts[0];
    const A start = n < N ? to<A>(x[n * D]) : A{0};
    const auto statistics = f.statistics(HeldRow<P, T>{part, weights, start, D, group, parity}, D);
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int d = (p * group + member) * K;
      if (n >= N || d >= D) continue;
      T v[K];
      T weight[K];
      T g[K];
      T old[K];
      unpack<T>(part.x[p], v);
      unpack<T>(weights[p], weight);
      unpack<T>(part.dy[p], g);
      if constexpr (kAdds) unpack<T>(part.dx[p], old);
      if constexpr (kEmits) {
        T again[K];
#pragma unroll
        for (int k = 0; k < K; ++k) again[k] = f.emit(statistics, v[k], weight[k]);
        store<K>(y + n * D + d, again);
      }
#pragma unroll
      for (int k = 0; k < K; ++k) {
        A total = f.apply(statistics, to<A>(v[k]), to<A>(weight[k]), to<A>(g[k]), sums[p][k]);
        if constexpr (kAdds) total += to<A>(old[k]);
        v[k] = to<T>(total);
      }
      store<K>(dx + n * D + d, v);
      if (most_of_all != nullptr) most = max(most, magnitude_of(v));
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) parts[i] = parts[i + 1];
  }
  store_sums(sums, group, D, partial + blockIdx.x * static_cast<int64_t>(F::kSums) * D);
  if (most_of_all != nullptr) block_max(most, most_of_all);
}

// Does the same for any row: one block per row, which it reads twice; the sums are in `partial`.
template <class T, class F>
__global__ void __launch_bounds__(kThreads)
    read_rows(F f, const T* x, const T* w, const T* dy, T* dx, bool adds, Accum<T>* partial,
              int64_t N, int D, uint32_t* most_of_all) {
  using A = Accum<T>;
  constexpr int S = F::kSums;
  uint32_t most = 0;
  A* const own = partial + blockIdx.x * static_cast<int64_t>(S) * D;
  for (int64_t n = blockIdx.x; n < N; n += gridDim.x) {
    const int64_t at = n * D;
    const auto statistics = f.statistics(ReadRow<T>{x + at, w, dy + at, to<A>(x[at]), D}, D);
    for (int d = static_cast<int>(threadIdx.x); d < D; d += kThreads) {
      A sums[S] = {};
#pragma unroll
      for (int s = 0; s < S; ++s) {
        if (n != blockIdx.x) sums[s] = own[s * static_cast<int64_t>(D) + d];
      }
      A total = f.apply(statistics, to<A>(x[at + d]), to<A>(w[d]), to<A>(dy[at + d]), sums);
      if (adds) total += to<A>(dx[at + d]);
      dx[at + d] = to<T>(total);
      if (most_of_all != nullptr) most = max(most, magnitude_of(to<float>(to<T>(total))));
#pragma unroll
      for (int s = 0; s < S; ++s) own[s * static_cast<int64_t>(D) + d] = sums[s];
    }
  }
  if (most_of_all != nullptr) block_max(most, most_of_all);
}

template <int S, class A>
struct ColumnSums {
  A* out[S];
  bool add[S];
};

// out[s][d] (+)= the sum of partial[.., s, d]: a block takes 32 columns, a warp every 32nd of
// `blocks` partial sums.
template <int S, class A>
__global__ void __launch_bounds__(1024)
    sum_columns(const A* partial, ColumnSums<S, A> sums, int blocks, int D) {
  __shared__ A parts[32][32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int d = static_cast<int>(blockIdx.x) * 32 + lane;
  wait_for_previous();
#pragma unroll
  for (int s = 0; s < S; ++s) {
    A total{0};
    if (d < D) {
#pragma unroll 8
      for (int b = warp; b < blocks; b += 32)
        total += partial[(static_cast<int64_t>(b) * S + s) * D + d];
    }
    __syncthreads();
    parts[warp][lane] = total;
    __syncthreads();
    if (warp != 0 || d >= D) continue;
    for (int i = 1; i < 32; ++i) total += parts[i][lane];
    sums.out[s][d] = sums.add[s] ? sums.out[s][d] + total : total;
  }
}

// Whether F can recompute its forward's y.
template <class F>
inline constexpr bool kCanEmit = requires(const F& f, typename F::Statistics s,
                                          typename F::Element x) {
  f.emit(s, x, x);
};

// Returns the number of blocks, each of which has written its sums; `y` is null if not wanted.
template <class F, class T = typename F::Element>
int64_t hold_rows(const F& f, const RowOperands<T>& o, const HeldRows& held, bool adds, T* y,
                  cudaStream_t stream) {
  const RowGroups& to = held.to;
  const int64_t blocks = std::min(kGpuRowBlocks, (o.N + to.rows - 1) / to.rows);
  const size_t shared = to.rows == 1 ? 0
                                     : static_cast<size_t>(to.threads()) * held.each *
                                           Pack<T>::kSize * sizeof(Accum<T>);
  const auto launch = [&]<bool kAdds, bool kEmits>() {
    constexpr int kFew = kFewThreads;
    const auto kernel = held.each == 1         ? held_rows<1, 1, kAdds, kEmits, 1024, T, F>
                        : to.threads() <= kFew ? held_rows<2, 1, kAdds, kEmits, kFew, T, F>
                                               : held_rows<2, 0, kAdds, kEmits, 1024, T, F>;
    kernel<<<static_cast<unsigned>(blocks), to.threads(), shared, stream>>>(
        f, o.x, o.w, o.dy, o.dx, y, o.partial, o.N, o.D, to.group, o.most);
  };
  if constexpr (kCanEmit<F>) {
    if (y != nullptr)
      adds ? launch.template operator()<true, true>() : launch.template operator()<false, true>();
  }
  if (y == nullptr)
    adds ? launch.template operator()<true, false>() : launch.template operator()<false, false>();
  TOK_CUDA_LAUNCHED();
  return blocks;
}

template <class F, class T = typename F::Element>
int64_t read_any_rows(const F& f, const RowOperands<T>& o, bool adds, cudaStream_t stream) {
  const int64_t blocks = std::min(kGpuRowBlocks, o.N);
  read_rows<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(f, o.x, o.w, o.dy, o.dx, adds,
                                                                    o.partial, o.N, o.D, o.most);
  TOK_CUDA_LAUNCHED();
  return blocks;
}

}  // namespace detail

template <class F>
bool launch_row_sums(const F& f, int64_t N, int64_t D, const KernelArgs& args, bool waits,
                     bool streams, typename F::Element* y, uint32_t* most) {
  using T = typename F::Element;
  constexpr int S = F::kSums;
  clear_maxima(most, 1, args.stream);
  if (D == 0) return true;
  const detail::RowOperands<T> o{.x = args.in[0].as<T>(),
                                 .w = args.in[1].as<T>(),
                                 .dy = args.in[2].as<T>(),
                                 .dx = args.out[0].as<T>(),
                                 .partial = static_cast<Accum<T>*>(args.workspace),
                                 .N = N,
                                 .D = static_cast<int>(D),
                                 .most = most};
  const cudaStream_t stream = as_stream(args.stream);
  const bool adds = args.accumulate[0];
  const HeldRows held = held_rows_of(D / Pack<T>::kSize);
  const bool holds = is_packed<T>(D, o.x, o.w, o.dy, o.dx, y) && held.to.threads() > 0;
  int64_t blocks = 0;
  if constexpr (detail::kCanStream<F>) {
    if (N > 0 && holds && streams) blocks = detail::stream_rows(f, o, adds, stream);
  }
  if (N > 0 && blocks == 0) {
    blocks = holds ? detail::hold_rows(f, o, held, adds, y, stream)
                   : detail::read_any_rows(f, o, adds, stream);
  }
  detail::ColumnSums<S, Accum<T>> sums;
  for (int s = 0; s < S; ++s) {
    const auto k = static_cast<size_t>(s + 1);
    sums.out[s] = args.out[k].as<Accum<T>>();
    sums.add[s] = args.accumulate[k];
  }
  launch_dependent(waits, detail::sum_columns<S, Accum<T>>, static_cast<unsigned>((D + 31) / 32),
                   1024, stream, o.partial, sums, static_cast<int>(blocks), o.D);
  return holds;
}

}  // namespace tokamak::gpu
