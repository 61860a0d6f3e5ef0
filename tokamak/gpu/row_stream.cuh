// Rows that stream through shared memory, on sm_90 and later: bulk copies, which need no registers,
// run some rows ahead of the threads that work on them.
#pragma once

#include "tokamak/gpu/amax.cuh"
#include "tokamak/gpu/rows.cuh"
#include "tokamak/ops/row_sums.h"
#ifndef TOK_HIP
#include "tokamak/gpu/mbarrier.cuh"
#endif

namespace tokamak::gpu {

/// Most threads of a block; two blocks run on each multiprocessor.
inline constexpr int kStreamThreads = 256;

/// Rounds of a block whose rows are in its shared memory or in flight to it.
inline constexpr int kStages = 3;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define TOK_HAS_BULK_COPIES
#endif

#ifdef TOK_HAS_BULK_COPIES

/// Counts the bytes that copies into shared memory deliver; one thread announces them.
class CopyBarrier : public CountingBarrier {
 public:
  __device__ void init() { CountingBarrier::init(1); }

  /// Starts a copy. REQUIRES: `bytes` is a multiple of 16.
  __device__ void copy(void* into, const void* from, uint32_t bytes) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(shared_address(into)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(address())
        : "memory");
  }
};

#endif

namespace detail {

/// Sums each of x over the warps [first, first + warps) of this thread's group, in a fixed order;
/// every thread of the group gets the sums. A block has at most eight warps, M is a power of two,
/// and `parity` must alternate from call to call. Takes one barrier.
template <int M, class A>
__device__ inline void sums_of_few_warps(A (&x)[M], int first, int warps, int parity) {
  constexpr int kMostWarps = kStreamThreads / 32;
  __shared__ A parts[2][kMostWarps * M];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto from = [](A value, int d) { return __shfl_xor_sync(0xFFFFFFFFU, value, d); };
  // Lanes [32 m / M, 32 (m + 1) / M) come to hold sum m: each pass sends half of the rest away.
#pragma unroll
  for (int d = 16, left = M / 2; left > 0; d /= 2, left /= 2) {
    const bool is_upper = (lane & d) != 0;
#pragma unroll
    for (int m = 0; m < left; ++m)
      x[m] = (is_upper ? x[m + left] : x[m]) + from(is_upper ? x[m] : x[m + left], d);
  }
#pragma unroll
  for (int d = 16 / M; d > 0; d /= 2) x[0] += from(x[0], d);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (lane % (32 / M) == 0) parts[parity][warp * M + lane / (32 / M)] = x[0];
  __syncthreads();
  A own{0};
#pragma unroll
  for (int i = 0; i < kMostWarps * M; i += 32) {
    if (i + lane < warps * M) own += parts[parity][first * M + i + lane];
  }
#pragma unroll
  for (int d = M; d < 32 && d < kMostWarps * M; d *= 2) own += from(own, d);
#pragma unroll
  for (int m = 0; m < M; ++m) x[m] = __shfl_sync(0xFFFFFFFFU, own, m);
}

// Whether rows of F's elements can stream: those of bf16 whose sums take one pass.
template <class F>
inline constexpr bool kCanStream = !kIsHip && sizeof(typename F::Element) == 2 && requires {
  F::kRowSums;
};

template <class T>
struct RowOperands {
  const T* x;
  const T* w;
  const T* dy;
  T* dx;
  Accum<T>* partial;
  int64_t N;
  int D;
  uint32_t* most;  // the greatest magnitude of dx, if wanted
};

#ifdef TOK_HAS_BULK_COPIES

// The elements of a row that a thread has: P accesses, `stride` elements apart. Inputs are in
// shared memory, dy `to_dy` elements behind x.
template <int P, class T>
struct OwnAccesses {
  int stride;
  int to_dy;
  bool has[P];
  uint4 weights[P];

  // Takes the weights w of member `member` of a group; accesses from D on are none.
  __device__ void load_weights(const T* w, int member, int D) {
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int d = p * stride + member * Pack<T>::kSize;
      has[p] = d < D;
      weights[p] = has[p] ? *reinterpret_cast<const uint4*>(w + d) : uint4{};
    }
  }

  struct Values {
    T x[Pack<T>::kSize];
    T w[Pack<T>::kSize];
    T dy[Pack<T>::kSize];
  };

  __device__ Values load_at(const T* x, int p) const {
    Values v;
    load<Pack<T>::kSize>(x + p * stride, v.x);
    load<Pack<T>::kSize>(x + to_dy + p * stride, v.dy);
    memcpy(v.w, &weights[p], sizeof(v.w));
    return v;
  }
};

// Applies f to a row and stores dx, added to `old` if it adds; returns the greatest magnitude of
// dx if it is wanted.
template <bool kAdds, int P, class T, class F, class S, class Sums>
__device__ inline uint32_t finish_row(const F& f, const S& statistics, const OwnAccesses<P, T>& own,
                                      const T* x, T* dx, const uint4 (&old)[P], Sums& sums,
                                      bool wants_most) {
  using A = Accum<T>;
  constexpr int K = Pack<T>::kSize;
  uint32_t most = 0;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    if (!own.has[p]) continue;
    auto v = own.load_at(x, p);
    T before[K];
    if constexpr (kAdds) memcpy(before, &old[p], sizeof(before));
#pragma unroll
    for (int k = 0; k < K; ++k) {
      A total = f.apply(statistics, to<A>(v.x[k]), to<A>(v.w[k]), to<A>(v.dy[k]), sums[p][k]);
      if constexpr (kAdds) total += to<A>(before[k]);
      v.x[k] = to<T>(total);
    }
    store<K>(dx + p * own.stride, v.x);
    if (wants_most) most = max(most, magnitude_of(v.x));
  }
  return most;
}

#endif

// Block b takes the b-th group of rows out of each gridDim.x, one row per group of threads; a group
// is whole warps with P accesses per thread. A row is read twice from shared memory, which costs
// less than registers for it; the sums over rows stay in registers.
template <int P, bool kAdds, class T, class F>
__global__ void __launch_bounds__(kStreamThreads, 2)
    streamed_rows(F f, RowOperands<T> o, int group) {
#ifdef TOK_HAS_BULK_COPIES
  using A = Accum<T>;
  constexpr int K = Pack<T>::kSize;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ CopyBarrier arrived[kStages];
  T* const ring = reinterpret_cast<T*>(shared);
  const int D = o.D;
  const int thread = static_cast<int>(threadIdx.x);
  const int member = thread % group;
  const int row = thread / group;
  const int rows = static_cast<int>(blockDim.x) / group;
  const int warps = group / 32;
  const int64_t step = static_cast<int64_t>(gridDim.x) * rows;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * rows;
  const int rounds = static_cast<int>((o.N - first + step - 1) / step);
  const int size = rows * D;  // elements of a round's rows of x or dy
  const auto start = [&](int round, int stage) {
    const int64_t n = first + round * step;
    const auto bytes = static_cast<uint32_t>(min(static_cast<int64_t>(rows), o.N - n) * D *
                                             static_cast<int64_t>(sizeof(T)));
    T* const into = ring + stage * 2 * size;
    arrived[stage].expect(2 * bytes);
    arrived[stage].copy(into, o.x + n * D, bytes);
    arrived[stage].copy(into + size, o.dy + n * D, bytes);
  };
  if (thread == 0) {
    for (int s = 0; s < kStages; ++s) arrived[s].init();
    CopyBarrier::publish();
    for (int s = 0; s < min(kStages, rounds); ++s) start(s, s);
  }
  OwnAccesses<P, T> own{.stride = group * K, .to_dy = size};
  own.load_weights(o.w, member, D);
  __syncthreads();
  A sums[P][K][F::kSums] = {};
  int stage = 0;
  uint32_t lap = 0;
  uint32_t most = 0;
  T* dx = o.dx + (first + row) * D + member * K;
  for (int round = 0; round < rounds; ++round, dx += step * D) {
    const T* const x = ring + stage * 2 * size + row * D + member * K;
    const bool is_inside = first + round * step + row < o.N;
    uint4 old[P];
    if constexpr (kAdds) {
#pragma unroll
      for (int p = 0; p < P; ++p) {
        if (is_inside && own.has[p]) old[p] = *reinterpret_cast<const uint4*>(dx + p * own.stride);
      }
    }
    arrived[stage].wait(lap);
    const A start_of_row = to<A>(x[-member * K]);
    A totals[F::kRowSums] = {};
#pragma unroll
    for (int p = 0; p < P; ++p) {
      if (!is_inside || !own.has[p]) continue;
      const auto v = own.load_at(x, p);
#pragma unroll
      for (int k = 0; k < K; ++k)
        f.add(totals, start_of_row, to<A>(v.x[k]), to<A>(v.w[k]), to<A>(v.dy[k]));
    }
    sums_of_few_warps(totals, row * warps, warps, round % 2);
    // All threads have left the previous stage.
    if (thread == 0 && round > 0 && round - 1 + kStages < rounds)
      start(round - 1 + kStages, stage == 0 ? kStages - 1 : stage - 1);
    const auto statistics = f.finish(totals, start_of_row, D);
    if (is_inside)
      most = max(most, finish_row<kAdds>(f, statistics, own, x, dx, old, sums, o.most != nullptr));
    if (++stage == kStages) {
      stage = 0;
      lap ^= 1;
    }
  }
  __syncthreads();
  store_sums(sums, group, D, o.partial + blockIdx.x * static_cast<int64_t>(F::kSums) * D);
  if (o.most != nullptr) block_max(most, o.most);
#endif
}

inline constexpr int kStreamAccesses = 2;           // P
inline constexpr size_t kStreamBytes = 48U << 10U;  // most shared memory of a block

// Spreads rows of D elements over threads; returns no threads where they would not fit.
template <class T>
RowGroups stream_groups(int64_t D) {
  const RowGroups to = row_groups(D / Pack<T>::kSize, kStreamAccesses, kStreamThreads);
  return to.threads() <= kStreamThreads && to.group % 32 == 0 ? to : RowGroups{};
}

// Bytes of shared memory for the rows, or for the sums that store_sums puts in their place.
template <class T>
size_t stream_bytes(const RowGroups& to, int64_t D) {
  const auto rows = static_cast<size_t>(kStages * 2 * to.rows * D) * sizeof(T);
  const auto sums = static_cast<size_t>(to.threads()) * kStreamAccesses * Pack<T>::kSize;
  return std::max(rows, sums * sizeof(Accum<T>));
}

/// Returns the number of blocks, each of which has written its sums.
template <class F, class T = typename F::Element>
int64_t stream_rows(const F& f, const RowOperands<T>& o, bool adds, cudaStream_t stream) {
  const RowGroups to = stream_groups<T>(o.D);
  const int64_t blocks = std::min(kGpuRowBlocks, (o.N + to.rows - 1) / to.rows);
  const auto kernel = adds ? streamed_rows<kStreamAccesses, true, T, F>
                           : streamed_rows<kStreamAccesses, false, T, F>;
  kernel<<<static_cast<unsigned>(blocks), to.threads(), stream_bytes<T>(to, o.D), stream>>>(
      f, o, to.group);
  TOK_CUDA_LAUNCHED();
  return blocks;
}

}  // namespace detail

/// Returns whether rows of D elements stream through shared memory on `device`; if so, lets the
/// kernels of F, which serve every D, use as much of it as any needs.
template <class F>
bool prepare_stream(int64_t D, const Device& device) {
  if constexpr (detail::kCanStream<F>) {
    using T = typename F::Element;
    constexpr int P = detail::kStreamAccesses;
    const RowGroups to = detail::stream_groups<T>(D);
    if (device.arch() < 90 || D % Pack<T>::kSize != 0 || to.threads() == 0) return false;
    if (detail::stream_bytes<T>(to, D) > detail::kStreamBytes) return false;
    for (const auto kernel :
         {detail::streamed_rows<P, false, T, F>, detail::streamed_rows<P, true, T, F>})
      TOK_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(detail::kStreamBytes)));
    return true;
  }
  return false;
}

}  // namespace tokamak::gpu
