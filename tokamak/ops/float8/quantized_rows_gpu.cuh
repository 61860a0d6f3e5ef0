// Quantized values of rows, or of segments of rows, in the kernel that computes their values.
#pragma once

#include <cstring>

#include "tokamak/gpu/rows.cuh"
#include "tokamak/ops/float8/encode_gpu.cuh"

namespace tokamak::gpu {

/// Quantized values of a matrix as it lies: under one scale for each row, or for each segment of
/// one.
struct QuantizedRows {
  uint8_t* values = nullptr;  ///< null if they are not wanted
  float* inverse = nullptr;
  uint32_t* columns = nullptr;  ///< where maxima of columns go that are kept besides, or null
  bool of_segments = false;
  bool power_of_two = false;
  int most_blocks = 0;  ///< blocks that keep maxima of columns

  template <class Format>
  __device__ float scale_of(uint32_t most) const {
    return gpu::scale_of<Format>(__uint_as_float(most), power_of_two);
  }

  /// Returns how many blocks work on `blocks` groups of rows.
  unsigned blocks_for(int64_t blocks) const {
    return static_cast<unsigned>(
        columns == nullptr ? blocks : std::min(blocks, static_cast<int64_t>(most_blocks)));
  }
};

/// Returns how many blocks of most kernels keep maxima of columns at once.
inline int most_blocks_of_rows(const Setup& setup) {
  return 4 * setup.device->num_multiprocessors();
}

/// A thread's place in the groups of threads that hold rows (see row_groups).
struct RowPlace {
  int member;  ///< of the group
  int row;     ///< the group's, within the block
  int group;   ///< threads per row

  __device__ explicit RowPlace(int threads_per_row)
      : member(static_cast<int>(threadIdx.x) % threads_per_row),
        row(static_cast<int>(threadIdx.x) / threads_per_row),
        group(threads_per_row) {}
};

/// Returns the greatest of each group of threads. All threads of the block call it; between two
/// calls the kernel has a barrier.
__device__ inline uint32_t group_max(uint32_t x, const RowPlace& at) {
  __shared__ uint32_t parts[32];
  if (at.group < 32) return warp_max(x, at.group);
  x = whole_warp_max(x);
  if (at.group == 32) return x;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = at.group / 32;
  if (lane == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  return whole_warp_max(lane < warps ? parts[at.row * warps + lane] : 0);
}

/// Stores the quantized values of K neighbours.
template <class Format, int K, class T>
__device__ inline void store_quantized(const T (&v)[K], float scale, uint8_t* into) {
  const auto at = [&](int k) { return to<float>(v[k]) * scale; };
  if constexpr (K == 8) {
    *reinterpret_cast<uint2*>(into) = {encode_float8<Format>(at(0), at(1), at(2), at(3)),
                                       encode_float8<Format>(at(4), at(5), at(6), at(7))};
  } else if constexpr (K == 4) {
    *reinterpret_cast<uint32_t*>(into) = encode_float8<Format>(at(0), at(1), at(2), at(3));
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) into[k] = static_cast<uint8_t>(encode_float8<Format>(at(k)));
  }
}

/// The threads that hold a segment by 16-byte accesses.
template <class T>
inline constexpr int kSegmentThreads = kTile / Pack<T>::kSize;

/// Whether groups of threads hold whole rows or segments of them such that encode_held() can make
/// their quantized values.
template <class T>
bool can_encode_held(const QuantizedRows& to, int64_t D, int group) {
  if (!detail::is_aligned(to.values)) return false;
  if (!to.of_segments || D <= kTile) return true;
  return kSegmentThreads<T> <= 32 && group % kSegmentThreads<T> == 0;
}

/// Quantizes row n of N, each of D elements. A group of threads holds what begins at its
/// element `begin`, P accesses per thread, zeros beyond its end: the rest of the row or, with
/// segments, whole segments of it. All threads of the block call it.
template <class Format, int P, class T>
__device__ inline void encode_held(const uint4 (&held)[P], int64_t n, int64_t N, int begin, int D,
                                   const RowPlace& at, const QuantizedRows& to) {
  constexpr int K = Pack<T>::kSize;
  constexpr int kHolders = kSegmentThreads<T> < 32 ? kSegmentThreads<T> : 32;
  uint32_t most[P];
#pragma unroll
  for (int p = 0; p < P; ++p) {
    T v[K];
    memcpy(v, &held[p], sizeof(v));
    most[p] = magnitude_of(v);
  }
  float scale[P];
  if (to.of_segments && D > kTile) {
    // Threads of a segment divide for one access each, as divisions cost more than exchanges.
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int holder = lane % kHolders;
    uint32_t mine = 0;
    int divided = holder;  // the access, if this thread stores its scale
    if constexpr (P == 4 && kHolders == 16) {
      mine = greatest_of_four(most);
      divided = holder % 4 == 0 ? holder / 4 : P;
    } else {
#pragma unroll
      for (int p = 0; p < P; ++p) {
        const uint32_t of_segment = warp_max(most[p], kHolders);
        if (lane % P == p) mine = of_segment;
      }
    }
    const float own = to.template scale_of<Format>(mine);
#pragma unroll
    for (int p = 0; p < P; ++p) {
      if constexpr (P == 4 && kHolders == 16) {
        scale[p] = of_word(own, p);
      } else {
        scale[p] = __shfl_sync(0xFFFFFFFFU, own, lane - lane % P + p);
      }
    }
    const int first = begin + (divided * at.group + at.member - holder) * K;
    if (divided < P && n < N && first < D) to.inverse[first / kTile * N + n] = 1.0F / own;
  } else {
#pragma unroll
    for (int p = 1; p < P; ++p) most[0] = max(most[0], most[p]);
    scale[0] = to.template scale_of<Format>(group_max(most[0], at));
#pragma unroll
    for (int p = 1; p < P; ++p) scale[p] = scale[0];
    if (at.member == 0 && n < N) to.inverse[n] = 1.0F / scale[0];
  }
  if (n >= N) return;
  uint8_t* const row = to.values + n * D;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int d = begin + (p * at.group + at.member) * K;
    T v[K];
    memcpy(v, &held[p], sizeof(v));
    if (d < D) store_quantized<Format>(v, scale[p], row + d);
  }
}

/// Keeps the maxima of columns that a block's groups of threads have taken, P accesses per thread.
/// All threads of the block call it.
template <int kMostThreads, int P, int K, class T>
__device__ inline void keep_columns(const ColumnMaxima<K, T> (&columns)[P], int D,
                                    const RowPlace& at, uint32_t* most) {
  __shared__ uint32_t parts[kMostThreads * K];
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int width = at.group * K;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    __syncthreads();
    for (int i = thread; i < width; i += threads) parts[i] = 0;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; ++k) atomicMax(&parts[at.member * K + k], columns[p].of(k));
    __syncthreads();
    for (int i = thread; i < width; i += threads) {
      const int d = p * width + i;
      if (d < D && parts[i] > *static_cast<volatile uint32_t*>(most + d))
        atomicMax(most + d, parts[i]);
    }
  }
}

/// Does what encode_held() does for a row of any length, by all threads of a block, and keeps
/// maxima of columns; value(d) computes an element, up to twice.
template <class Format, class Value>
__device__ inline void encode_any(const Value& value, int64_t n, int64_t N, int64_t D,
                                  const QuantizedRows& to) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto magnitude = [](auto v) { return magnitude_of(gpu::to<float>(v)); };
  const auto put = [&](int64_t d, auto v, float scale) {
    if (to.columns != nullptr && magnitude(v) > to.columns[d])
      atomicMax(to.columns + d, magnitude(v));
    to.values[n * D + d] = static_cast<uint8_t>(encode_float8<Format>(gpu::to<float>(v) * scale));
  };
  if (!to.of_segments) {
    uint32_t most = 0;
    for (int64_t d = thread; d < D; d += kThreads) most = max(most, magnitude(value(d)));
    const float scale = to.template scale_of<Format>(group_max(most, RowPlace(kThreads)));
    if (thread == 0) to.inverse[n] = 1.0F / scale;
    for (int64_t d = thread; d < D; d += kThreads) put(d, value(d), scale);
    return;
  }
  for (int64_t segment = thread / 32; segment * kTile < D; segment += kThreads / 32) {
    const int64_t end = min((segment + 1) * kTile, D);
    const int64_t begin = segment * kTile + thread % 32;
    uint32_t most = 0;
    for (int64_t d = begin; d < end; d += 32) most = max(most, magnitude(value(d)));
    const float scale = to.template scale_of<Format>(warp_max(most, 32));
    if (thread % 32 == 0) to.inverse[segment * N + n] = 1.0F / scale;
    for (int64_t d = begin; d < end; d += 32) put(d, value(d), scale);
  }
}

// Whether F computes nothing of what it loads.
template <class F>
inline constexpr bool kOnlyLoads = requires {
  typename F::OnlyLoads;
};

// Groups of threads hold rows, or P segments each. f.values<K>(i, v) computes elements [i, i + K)
// of the matrix. Blocks that keep maxima of columns take several rows; if f only loads, they load
// the next ones before they encode.
template <int P, int kMostThreads, bool kKeepsColumns, class Format, class F>
__global__ void __launch_bounds__(kMostThreads, kMostThreads == kThreads ? 4 : 1)
    encode_values(F f, int64_t N, int D, int group, QuantizedRows to) {
  using T = typename F::Element;
  constexpr int K = Pack<T>::kSize;
  const RowPlace at(group);
  const auto rows = static_cast<int>(blockDim.x) / group;
  constexpr int kWidth = P * kTile;
  const auto parts = to.of_segments ? static_cast<unsigned>((D + kWidth - 1) / kWidth) : 1U;
  const auto begin = static_cast<int>(blockIdx.x % parts) * kWidth;
  const auto compute = [&](int64_t n, uint4(&held)[P]) {
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int d = begin + (p * group + at.member) * K;
      held[p] = uint4{};
      if (n >= N || d >= D) continue;
      T v[K];
      f.template values<K>(n * D + d, v);
      memcpy(&held[p], v, sizeof(v));
    }
  };
  int64_t n = static_cast<int64_t>(blockIdx.x / parts) * rows + at.row;
  uint4 held[P];
  if constexpr (!kKeepsColumns) {
    compute(n, held);
    encode_held<Format, P, T>(held, n, N, begin, D, at, to);
  } else {
    const int64_t step = static_cast<int64_t>(gridDim.x / parts) * rows;
    ColumnMaxima<K, T> columns[P];
    if constexpr (kOnlyLoads<F>) compute(n, held);
    for (; n - at.row < N; n += step) {
      [[maybe_unused]] uint4 next[P];
      if constexpr (kOnlyLoads<F>) {
        compute(n + step, next);
      } else {
        compute(n, held);
      }
#pragma unroll
      for (int p = 0; p < P; ++p) {
        T v[K];
        memcpy(v, &held[p], sizeof(v));
        columns[p].add(v);
      }
      encode_held<Format, P, T>(held, n, N, begin, D, at, to);
      __syncthreads();
      if constexpr (kOnlyLoads<F>) {
#pragma unroll
        for (int p = 0; p < P; ++p) held[p] = next[p];
      }
    }
    keep_columns<kMostThreads>(columns, D, at, to.columns);
  }
}

template <class Format, class F>
__global__ void __launch_bounds__(kThreads)
    encode_any_values(F f, int64_t N, int64_t D, QuantizedRows to) {
  const int64_t n = blockIdx.x;
  const auto value = [&](int64_t d) {
    typename F::Element v[1];
    f.template values<1>(n * D + d, v);
    return v[0];
  };
  encode_any<Format>(value, n, N, D, to);
}

/// Quantizes an N x D matrix of what `f` computes element by element; see encode_values. All
/// `pointers` are those that f accesses.
template <class Format, class F, class... P>
void launch_quantized_rows(const F& f, int64_t N, int64_t D, const QuantizedRows& to,
                           DeviceStream stream, const P*... pointers) {
  using T = typename F::Element;
  clear_maxima(to.columns, D, stream);
  if (N * D == 0) return;
  const auto launch = [&](auto kernel, const RowGroups& groups, int64_t parts) {
    const unsigned blocks = to.blocks_for((N + groups.rows - 1) / groups.rows * parts);
    kernel<<<blocks, groups.threads(), 0, as_stream(stream)>>>(f, N, static_cast<int>(D),
                                                               groups.group, to);
  };
  const auto launch_rows = [&]<int kAccesses, int kMostThreads>(const RowGroups& groups) {
    to.columns != nullptr
        ? launch(encode_values<kAccesses, kMostThreads, true, Format, F>, groups, 1)
        : launch(encode_values<kAccesses, kMostThreads, false, Format, F>, groups, 1);
  };
  const int64_t packs = D / Pack<T>::kSize;
  const RowGroups groups = row_groups(packs, 2, kThreads);
  if (!is_packed<T>(D, pointers...) || !can_encode_held<T>(to, D, kSegmentThreads<T>) ||
      packs > 4096) {
    encode_any_values<Format>
        <<<static_cast<unsigned>(N), kThreads, 0, as_stream(stream)>>>(f, N, D, to);
  } else if (to.of_segments) {
    const RowGroups of_segment = row_groups(kSegmentThreads<T>, 1, kThreads);
    const int64_t segments = tiles_of(D);
    segments < 4
        ? launch(encode_values<1, kThreads, false, Format, F>, of_segment, segments)
        : launch(encode_values<4, kThreads, false, Format, F>, of_segment, (segments + 3) / 4);
  } else if (groups.threads() <= kThreads) {
    launch_rows.template operator()<2, kThreads>(groups);
  } else if (groups.threads() <= 1024) {
    launch_rows.template operator()<2, 1024>(groups);
  } else {
    launch_rows.template operator()<4, 1024>(row_groups(packs, 4, kThreads));
  }
  TOK_CUDA_LAUNCHED();
}

}  // namespace tokamak::gpu
