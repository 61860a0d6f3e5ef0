// Rows held in the registers of a group of threads, and sums over such groups.
#pragma once

#include <bit>

#include "tokamak/gpu/dispatch.cuh"

namespace tokamak::gpu {

/// How rows of `packs` 16-byte accesses lie over threads: `group` threads per row (a power of two
/// up to a warp, or whole warps) and `rows` groups per block.
struct RowGroups {
  int group = 0;
  int rows = 0;

  int threads() const { return group * rows; }
};

/// Returns groups of threads, each with `each` accesses to a row of `packs`; blocks have about
/// `threads` threads.
inline RowGroups row_groups(int64_t packs, int64_t each, int64_t threads) {
  const int64_t wanted = (packs + each - 1) / each;
  const int64_t group = wanted > 32 ? (wanted + 31) / 32 * 32
                                    : static_cast<int64_t>(std::bit_ceil(
                                          static_cast<uint64_t>(std::max<int64_t>(wanted, 1))));
  return {.group = static_cast<int>(group),
          .rows = static_cast<int>(std::max<int64_t>(1, threads / group))};
}

/// How a kernel that keeps sums over rows holds them: two accesses per thread, so that two blocks
/// of few threads fit a multiprocessor and nothing spills to local memory; longer rows take as many
/// threads as a block has. Rows of more than 2048 accesses get no threads.
struct HeldRows {
  RowGroups to;
  int each = 2;  ///< accesses per thread: 1 or 2
};

inline constexpr int kFewThreads = 256;

inline HeldRows held_rows_of(int64_t packs) {
  if (packs > 2048) return {};
  const int each = packs > 2 * kFewThreads && packs <= 1024 ? 1 : 2;
  return {.to = row_groups(packs, each, kFewThreads), .each = each};
}

/// Whether rows of D elements from all `pointers` on can be read by 16-byte accesses.
template <class T, class... P>
bool is_packed(int64_t D, const P*... pointers) {
  return D % Pack<T>::kSize == 0 && (detail::is_aligned(pointers) && ...);
}

/// Sums each of x over each group of `group` threads (see row_groups), in a fixed order; every
/// thread of the group gets the sums. All threads of the block call it; `parity` must alternate
/// from call to call, which saves a barrier.
template <int S, class A>
__device__ inline void group_sums(A (&x)[S], int group, int parity) {
  __shared__ A parts[2][S][32];
  const int within = group < 32 ? group : 32;
  for (int d = within / 2; d > 0; d /= 2) {
#pragma unroll
    for (int s = 0; s < S; ++s) x[s] += __shfl_xor_sync(0xFFFFFFFFU, x[s], d);
  }
  if (group <= 32) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warps = group / 32;
  const int first = thread / group * warps;
  if (lane == 0) {
#pragma unroll
    for (int s = 0; s < S; ++s) parts[parity][s][thread / 32] = x[s];
  }
  __syncthreads();
#pragma unroll
  for (int s = 0; s < S; ++s) {
    x[s] = lane < warps ? parts[parity][s][first + lane] : A{0};
#pragma unroll
    for (int d = 16; d > 0; d /= 2) x[s] += __shfl_xor_sync(0xFFFFFFFFU, x[s], d);
  }
}

/// Does the same for four sums over groups of whole warps. Each sum ends up in eight lanes, so that
/// 13 shuffles do what takes 40 in group_sums.
template <class A>
__device__ inline void sums_of_warps(A (&x)[4], int group, int parity) {
  __shared__ A parts[2][32][4];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const auto from = [](A value, int d) { return __shfl_xor_sync(0xFFFFFFFFU, value, d); };
  const bool is_upper = (lane & 16) != 0;
  const A low = (is_upper ? x[2] : x[0]) + from(is_upper ? x[0] : x[2], 16);
  const A high = (is_upper ? x[3] : x[1]) + from(is_upper ? x[1] : x[3], 16);
  const bool is_odd = (lane & 8) != 0;
  A own = (is_odd ? high : low) + from(is_odd ? low : high, 8);
#pragma unroll
  for (int d = 4; d > 0; d /= 2) own += from(own, d);
  if (group > 32) {
    const int warps = group / 32;
    const int first = thread / group * warps;
    if (lane % 8 == 0) parts[parity][thread / 32][lane / 8] = own;
    __syncthreads();
    own = A{0};
    for (int w = lane % 8; w < warps; w += 8) own += parts[parity][first + w][lane / 8];
#pragma unroll
    for (int d = 4; d > 0; d /= 2) own += from(own, d);
  }
#pragma unroll
  for (int s = 0; s < 4; ++s) x[s] = __shfl_sync(0xFFFFFFFFU, own, 8 * s);
}

namespace detail {

// Stores sum s of K neighbouring elements, by 16-byte accesses.
template <int K, int S, class A>
__device__ void store_sum(A* into, const A (&sums)[K][S], int s) {
  A own[K];
#pragma unroll
  for (int k = 0; k < K; ++k) own[k] = sums[k][s];
  store<K>(into, own);
}

// partial[s][d] = the sum over the block's groups of threads of sums[..][s].
template <int P, int K, int S, class A>
__device__ void store_sums(const A (&sums)[P][K][S], int group, int D, A* partial) {
  extern __shared__ __align__(16) unsigned char shared[];
  A* const totals = reinterpret_cast<A*>(shared);
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int width = group * P * K;
#pragma unroll
  for (int s = 0; s < S; ++s) {
    if (threads == group) {
#pragma unroll
      for (int p = 0; p < P; ++p) {
        const int d = (p * group + thread) * K;
        if (d < D) store_sum(partial + s * static_cast<int64_t>(D) + d, sums[p], s);
      }
      continue;
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < P; ++p)
      store_sum(totals + thread / group * width + (p * group + thread % group) * K, sums[p], s);
    __syncthreads();
    for (int d = thread; d < D; d += threads) {
      A total{0};
      for (int g = 0; g < threads / group; ++g) total += totals[g * width + d];
      partial[s * static_cast<int64_t>(D) + d] = total;
    }
  }
}

}  // namespace detail

}  // namespace tokamak::gpu
