// The kernels of both kinds of norm, of sums too. An epilogue takes their output.
#pragma once

#include <cstring>

#include "tokamak/gpu/dependent.cuh"
#include "tokamak/ops/norm/norm.h"
#include "tokamak/ops/norm/norm_rows_gpu.cuh"

namespace tokamak::gpu {

// N rows, D embed.

/// The inputs of a norm: y follows from x or, with a branch, from sum = T(x + branch), which may
/// lie on x or branch. An RMS norm has no b.
template <class T>
struct NormInputs {
  const T* x;
  const T* branch;
  const T* w;
  const T* b;
  T* sum;  ///< null if it is not wanted
};

/// What becomes of y in a norm's kernels: an epilogue has put() and take(), and others of these
/// members where it needs them.
struct NormEpilogue {
  /// What a thread keeps from row to row, of P accesses of K elements each.
  template <int P, int K>
  struct Kept {};

  /// Whether there is nothing to do.
  __device__ bool is_done() const { return false; }

  /// Whether blocks take every gridDim.x-th group of rows, not one.
  __device__ bool loops() const { return false; }

  /// Ends row n of N, of which groups of threads hold what put() has left in `row`.
  template <int P>
  __device__ void end_row(const uint4 (&)[P], int64_t, int64_t, int, int) const {}

  /// Ends the kernel, of at most kMostThreads a block.
  template <int kMostThreads, class Own>
  __device__ void end(const Own&, int, int) const {}

  void begin(int64_t, cudaStream_t) const {}

  void end_empty(cudaStream_t) const {}

  /// Whether groups of threads that hold rows of D elements can do it.
  bool can_hold(int64_t, int) const { return true; }

  unsigned blocks_for(int64_t groups) const { return static_cast<unsigned>(groups); }
};

/// Stores y.
template <class T>
struct StoreRows : NormEpilogue {
  T* y;

  explicit StoreRows(T* to) : y(to) {}

  /// Takes elements [at, at + K), a thread's access p of a row that it holds in `row`.
  template <class Own, int K>
  __device__ void put(Own&, int, int64_t at, const T (&v)[K], uint4&) const {
    store<K>(y + at, v);
  }

  /// Takes row n of N, which all threads of a block compute by value(d).
  template <class Value>
  __device__ void take(const Value& value, int64_t n, int64_t, int D) const {
    for (int d = static_cast<int>(threadIdx.x); d < D; d += kThreads) y[n * D + d] = value(d);
  }

  bool is_packed(int64_t D) const { return gpu::is_packed<T>(D, y); }
};

// A group of threads holds a row, P accesses per thread; x (and branch) is read once, y (and sum)
// written once.
template <int P, int kMostThreads, bool kAdds, class Row, class Out>
__global__ void __launch_bounds__(kMostThreads)
    norm_of_held(NormInputs<typename Row::Element> o, Out out, int64_t N, int D, int group,
                 typename Row::A eps) {
  using T = typename Row::Element;
  using A = typename Row::A;
  constexpr int K = Pack<T>::kSize;
  const int thread = static_cast<int>(threadIdx.x);
  const int member = thread % group;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int d = (p * group + member) * K;
    if (d < D) prefetch(o.w + d);
  }
  wait_for_previous();
  let_next_start();
  if (out.is_done()) return;
  const int64_t rows = blockDim.x / group;
  int64_t n = static_cast<int64_t>(blockIdx.x) * rows + thread / group;
  typename Out::template Kept<P, K> kept;
  do {
    uint4 row[P];
    uint4 branch[P];
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int d = (p * group + member) * K;
      row[p] = branch[p] = uint4{};
      if (n >= N || d >= D) continue;
      row[p] = *reinterpret_cast<const uint4*>(o.x + n * D + d);
      if constexpr (kAdds) branch[p] = *reinterpret_cast<const uint4*>(o.branch + n * D + d);
    }
    A first{0};
    if constexpr (Row::kReadsFirst) {
      if (n < N) {
        first = to<A>(o.x[n * D]);
        if constexpr (kAdds) first = to<A>(to<T>(first + to<A>(o.branch[n * D])));
      }
    }
    if constexpr (kAdds) {
#pragma unroll
      for (int p = 0; p < P; ++p) {
        T v[K];
        T u[K];
        memcpy(v, &row[p], sizeof(v));
        memcpy(u, &branch[p], sizeof(u));
#pragma unroll
        for (int k = 0; k < K; ++k) v[k] = to<T>(to<A>(v[k]) + to<A>(u[k]));
        memcpy(&row[p], v, sizeof(v));
        // The start of the row is not written until all threads have read it as `first`.
        const int d = (p * group + member) * K;
        if (n < N && d < D && !(Row::kReadsFirst && d == 0) && o.sum != nullptr)
          store<K>(o.sum + n * D + d, v);
      }
    }
    const auto statistics = Row::of_held(Held<P, T>{row, first, D, group}, eps);
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int d = (p * group + member) * K;
      if (n >= N || d >= D) continue;
      T v[K];
      T weight[K];
      T bias[K] = {};
      memcpy(v, &row[p], sizeof(v));
      if (kAdds && Row::kReadsFirst && d == 0 && o.sum != nullptr) store<K>(o.sum + n * D, v);
      load<K>(o.w + d, weight);
      if constexpr (Row::kHasBias) load<K>(o.b + d, bias);
#pragma unroll
      for (int k = 0; k < K; ++k) v[k] = Row::apply(statistics, v[k], weight[k], bias[k]);
      out.put(kept, p, n * D + d, v, row[p]);
    }
    out.end_row(row, n, N, D, group);
    if (out.loops()) __syncthreads();
    n += gridDim.x * rows;
  } while (out.loops() && n - thread / group < N);
  out.template end<kMostThreads>(kept, D, group);
}

// Does the same for any row: one block per row, which it reads two or three times.
template <bool kAdds, class Row, class Out>
__global__ void __launch_bounds__(kThreads)
    norm_of_any(NormInputs<typename Row::Element> o, Out out, int64_t N, int D,
                typename Row::A eps) {
  using T = typename Row::Element;
  using A = typename Row::A;
  if (out.is_done()) return;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * D;
  const auto sum_at = [&](int64_t d) {
    return to<T>(to<A>(o.x[at + d]) + to<A>(o.branch[at + d]));
  };
  // A thread reads what it has written.
  const auto x = [&](int64_t d) {
    if constexpr (!kAdds) return o.x[at + d];
    return o.sum == nullptr ? sum_at(d) : o.sum[at + d];
  };
  const auto element = [&](int64_t d) {
    if constexpr (kAdds) {
      if (o.sum != nullptr) o.sum[at + d] = sum_at(d);
    }
    return x(d);
  };
  const auto statistics = Row::of_any(element, x, D, eps);
  const auto value = [&](int64_t d) {
    return Row::apply(statistics, x(d), o.w[d], Row::kHasBias ? o.b[d] : T{});
  };
  out.take(value, blockIdx.x, N, D);
}

inline constexpr int kManyAccesses = 4;

template <class T>
using PlainRmsRow = RmsRow<T, false>;
template <class T>
using ZeroCenteredRmsRow = RmsRow<T, true>;

// A kernel, and the groups of threads that hold a row.
template <class T, class Out>
struct ChosenNorm {
  RowGroups to;
  void (*kernel)(NormInputs<T>, Out, int64_t, int, int, Accum<T>) = nullptr;
};

// Holds rows as the gradient does, whose y must have the same bits; longer rows take more accesses.
template <bool kAdds, class Out, class T, bool kZeroCentered>
ChosenNorm<T, Out> choose_norm(RmsRow<T, kZeroCentered>, int64_t packs) {
  using Row = RmsRow<T, kZeroCentered>;
  HeldRows held = held_rows_of(packs);
  if (held.to.threads() == 0)
    held = {.to = row_groups(packs, kManyAccesses, 128), .each = kManyAccesses};
  if (held.each == 1) return {held.to, norm_of_held<1, 1024, kAdds, Row, Out>};
  if (held.each == kManyAccesses)
    return {held.to, norm_of_held<kManyAccesses, 1024, kAdds, Row, Out>};
  if (held.to.threads() > kFewThreads) return {held.to, norm_of_held<2, 1024, kAdds, Row, Out>};
  return {held.to, norm_of_held<2, kFewThreads, kAdds, Row, Out>};
}

template <bool kAdds, class Out, class T>
ChosenNorm<T, Out> choose_norm(LayerRow<T>, int64_t packs) {
  using Row = LayerRow<T>;
  if (packs <= 32) return {row_groups(packs, 1, 128), norm_of_held<1, 128, kAdds, Row, Out>};
  const RowGroups to = row_groups(packs, kManyAccesses, 128);
  if (to.threads() > 256) return {to, norm_of_held<kManyAccesses, 1024, kAdds, Row, Out>};
  return {to, norm_of_held<kManyAccesses, 256, kAdds, Row, Out>};
}

template <class Row, bool kAdds, class T, class Out>
void launch_norm(const NormInputs<T>& o, const Out& out, int64_t N, int64_t D, Accum<T> eps,
                 bool waits, cudaStream_t stream) {
  out.begin(D, stream);
  if (N == 0 || D == 0) return out.end_empty(stream);
  const int width = static_cast<int>(D);
  const int64_t packs = D / Pack<T>::kSize;
  const bool is_short = is_packed<T>(D, o.x, o.branch, o.w, o.b, o.sum) && out.is_packed(D) &&
                        packs <= 1024 * kManyAccesses;
  const auto chosen = is_short ? choose_norm<kAdds, Out>(Row{}, packs) : ChosenNorm<T, Out>{};
  if (!is_short || !out.can_hold(D, chosen.to.group)) {
    norm_of_any<kAdds, Row>
        <<<static_cast<unsigned>(N), kThreads, 0, stream>>>(o, out, N, width, eps);
    TOK_CUDA_LAUNCHED();
  } else {
    launch_dependent(waits, chosen.kernel,
                     out.blocks_for((N + chosen.to.rows - 1) / chosen.to.rows), chosen.to.threads(),
                     stream, o, out, N, width, chosen.to.group, eps);
  }
}

/// Returns the kernel of one kind of norm. make_out<T>(args) returns the epilogue.
template <template <class> class Row, class MakeOut>
Kernel norm_kernel(float eps, const KernelTypes& types, const Setup& setup, MakeOut make_out) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  const bool waits = waits_for_few(setup, N);
  return by_float(types.in[0].dtype, [=]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      const NormInputs<T> o{.x = args.in[0].as<T>(),
                            .branch = nullptr,
                            .w = args.in[1].as<T>(),
                            .b = args.has(2) ? args.in[2].as<T>() : nullptr,
                            .sum = nullptr};
      launch_norm<Row<T>, false>(o, make_out.template operator()<T>(args), N, D, eps, waits,
                                 as_stream(args.stream));
    };
  });
}

/// The same of a norm after a sum, which is the first output if `stores_sum`.
template <template <class> class Row, class MakeOut>
Kernel add_norm_kernel(float eps, const KernelTypes& types, const Setup& setup, bool stores_sum,
                       MakeOut make_out) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  const bool waits = waits_for_few(setup, N);
  return by_float(types.in[0].dtype, [=]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      const NormInputs<T> o{.x = args.in[0].as<T>(),
                            .branch = args.in[1].as<T>(),
                            .w = args.in[2].as<T>(),
                            .b = args.has(3) ? args.in[3].as<T>() : nullptr,
                            .sum = stores_sum ? args.out[0].as<T>() : nullptr};
      launch_norm<Row<T>, true>(o, make_out.template operator()<T>(args), N, D, eps, waits,
                                as_stream(args.stream));
    };
  });
}

template <class MakeOut>
Kernel rms_norm_kernel(const RmsNorm& op, const KernelTypes& types, const Setup& setup,
                       MakeOut make_out) {
  return op.zero_centered ? norm_kernel<ZeroCenteredRmsRow>(op.eps, types, setup, make_out)
                          : norm_kernel<PlainRmsRow>(op.eps, types, setup, make_out);
}

template <class MakeOut>
Kernel add_rms_norm_kernel(const AddRmsNorm& op, const KernelTypes& types, const Setup& setup,
                           bool stores_sum, MakeOut make_out) {
  return op.zero_centered
             ? add_norm_kernel<ZeroCenteredRmsRow>(op.eps, types, setup, stores_sum, make_out)
             : add_norm_kernel<PlainRmsRow>(op.eps, types, setup, stores_sum, make_out);
}

/// Return the kernels of gradients. With `takes_maximum` the last output is the greatest magnitude
/// of dx (gpu/amax.cuh).
Kernel rms_norm_grad_kernel(const RmsNormGrad& op, const KernelTypes& types, const Setup& setup,
                            bool takes_maximum);
Kernel layer_norm_grad_kernel(const LayerNormGrad& op, const KernelTypes& types, const Setup& setup,
                              bool takes_maximum);

}  // namespace tokamak::gpu
