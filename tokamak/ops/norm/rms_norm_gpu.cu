#include <cstring>

#include "tokamak/gpu/row_sums.cuh"
#include "tokamak/gpu/rows.cuh"
#include "tokamak/ops/norm/rms_norm.h"

namespace tokamak::gpu {
namespace {

// N rows, D embed.

template <class A>
__device__ A reciprocal_rms(A squares, int D, A eps) {
  return A{1} / sqrt(squares / static_cast<A>(D) + eps);
}

template <class T>
__device__ T scale(T x, T w, Accum<T> r) {
  using A = Accum<T>;
  return to<T>(to<A>(w) * to<A>(to<T>(to<A>(x) * r)));
}

// What a norm reads and writes: y of x or, with a branch, of sum = T(x + branch), which may lie on
// either.
template <class T>
struct Operands {
  const T* x;
  const T* branch;
  const T* w;
  T* sum;
  T* y;
};

// y = w T(x r), r = 1 / sqrt(mean(x^2) + eps): a group of threads holds a row, P accesses each; x
// (and branch) is read once, y (and sum) written once.
template <int P, int kMostThreads, bool kAdds, class T>
__global__ void __launch_bounds__(kMostThreads)
    rms_norm(Operands<T> o, int64_t N, int D, int group, Accum<T> eps) {
  using A = Accum<T>;
  constexpr int K = Pack<T>::kSize;
  const int thread = static_cast<int>(threadIdx.x);
  const int member = thread % group;
  const int64_t rows = blockDim.x / group;
  const int64_t n = static_cast<int64_t>(blockIdx.x) * rows + thread / group;
  uint4 row[P];  // whole registers: elements of 2 bytes would take one each
  uint4 branch[P];
  A squares[1] = {A{0}};
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int d = (p * group + member) * K;
    row[p] = branch[p] = uint4{};
    if (n >= N || d >= D) continue;
    row[p] = *reinterpret_cast<const uint4*>(o.x + n * D + d);
    if constexpr (kAdds) branch[p] = *reinterpret_cast<const uint4*>(o.branch + n * D + d);
  }
#pragma unroll
  for (int p = 0; p < P; ++p) {
    T v[K];
    memcpy(v, &row[p], sizeof(v));
    if constexpr (kAdds) {
      T u[K];
      memcpy(u, &branch[p], sizeof(u));
#pragma unroll
      for (int k = 0; k < K; ++k) v[k] = to<T>(to<A>(v[k]) + to<A>(u[k]));
      memcpy(&row[p], v, sizeof(v));
      const int d = (p * group + member) * K;
      if (n < N && d < D) store<K>(o.sum + n * D + d, v);
    }
#pragma unroll
    for (int k = 0; k < K; ++k) squares[0] = fma(to<A>(v[k]), to<A>(v[k]), squares[0]);
  }
  group_sums(squares, group, 0);
  const A r = reciprocal_rms(squares[0], D, eps);
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int d = (p * group + member) * K;
    if (n >= N || d >= D) continue;
    T v[K];
    T weight[K];
    memcpy(v, &row[p], sizeof(v));
    load<K>(o.w + d, weight);
#pragma unroll
    for (int k = 0; k < K; ++k) v[k] = scale(v[k], weight[k], r);
    store<K>(o.y + n * D + d, v);
  }
}

// The same for any row: a block a row, which is read twice.
template <bool kAdds, class T>
__global__ void __launch_bounds__(kThreads) rms_norm_of_any(Operands<T> o, int D, Accum<T> eps) {
  using A = Accum<T>;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * D;
  A squares{0};
  for (int d = static_cast<int>(threadIdx.x); d < D; d += kThreads) {
    T element = o.x[at + d];
    if constexpr (kAdds) {
      element = to<T>(to<A>(element) + to<A>(o.branch[at + d]));
      o.sum[at + d] = element;
    }
    const A v = to<A>(element);
    squares += v * v;
  }
  const A r = reciprocal_rms(block_sum(squares), D, eps);
  const T* x = kAdds ? o.sum : o.x;  // which this thread has written
  for (int d = static_cast<int>(threadIdx.x); d < D; d += kThreads)
    o.y[at + d] = scale(x[at + d], o.w[d], r);
}

// As the gradient holds rows, whose y has to have the same bits; longer ones with more accesses.
template <bool kAdds, class T>
void launch(const Operands<T>& o, int64_t N, int64_t D, Accum<T> eps, cudaStream_t stream) {
  constexpr int kMany = 4;
  if (N == 0 || D == 0) return;
  const int width = static_cast<int>(D);
  const int64_t packs = D / Pack<T>::kSize;
  if (!is_packed<T>(D, o.x, o.branch, o.w, o.sum, o.y) || packs > 1024 * kMany) {
    rms_norm_of_any<kAdds><<<static_cast<unsigned>(N), kThreads, 0, stream>>>(o, width, eps);
  } else {
    HeldRows held = held_rows_of(packs);
    if (held.to.threads() == 0) held = {.to = row_groups(packs, kMany, 128), .each = kMany};
    const auto blocks = static_cast<unsigned>((N + held.to.rows - 1) / held.to.rows);
    const auto kernel = held.each == 1                     ? rms_norm<1, 1024, kAdds, T>
                        : held.each == kMany               ? rms_norm<kMany, 1024, kAdds, T>
                        : held.to.threads() <= kFewThreads ? rms_norm<2, kFewThreads, kAdds, T>
                                                           : rms_norm<2, 1024, kAdds, T>;
    kernel<<<blocks, held.to.threads(), 0, stream>>>(o, N, width, held.to.group, eps);
  }
  TOK_CUDA_LAUNCHED();
}

// With h = x r: dx (+)= r (w dy - h mean(w dy h)), dw += dy h; see row_sums.cuh.
template <class T>
struct Gradient {
  using Element = T;
  using A = Accum<T>;
  static constexpr int kSums = 1;

  struct Statistics {
    A r, scale;
  };

  A eps;

  template <class Row>
  __device__ Statistics statistics(const Row& row, int D) const {
    A sums[2] = {A{0}, A{0}};
    row.each([&](A x, A w, A dy) {
      sums[0] = fma(x, x, sums[0]);
      sums[1] += w * dy * x;
    });
    row.sum(sums);
    const A r = reciprocal_rms(sums[0], D, eps);
    return {r, sums[1] * r * r / static_cast<A>(D)};
  }

  __device__ A apply(const Statistics& s, A x, A w, A dy, A (&sums)[kSums]) const {
    sums[0] += dy * x * s.r;
    return s.r * (w * dy - x * s.scale);
  }

  __device__ T emit(const Statistics& s, T x, T w) const { return scale(x, w, s.r); }
};

}  // namespace

Kernel prepare(const RmsNorm& op, const KernelTypes& types, const Setup&) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [=, eps = op.eps]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      const Operands<T> o{args.in[0].as<T>(), nullptr, args.in[1].as<T>(), nullptr,
                          args.out[0].as<T>()};
      launch<false>(o, N, D, eps, as_stream(args.stream));
    };
  });
}

Kernel prepare(const AddRmsNorm& op, const KernelTypes& types, const Setup&) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [=, eps = op.eps]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      const Operands<T> o{args.in[0].as<T>(), args.in[1].as<T>(), args.in[2].as<T>(),
                          args.out[0].as<T>(), args.out[1].as<T>()};
      launch<true>(o, N, D, eps, as_stream(args.stream));
    };
  });
}

// Where the rows' kernel does not make y, the forward's does.
Kernel prepare(const RmsNormGrad& op, const KernelTypes& types, const Setup& setup) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  const bool waits = can_wait_for_previous(setup);
  return by_float(types.out[0].dtype, [=, eps = op.eps, emits_y = op.emits_y]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      T* const y = emits_y ? args.out[2].as<T>() : nullptr;
      const Gradient<T> gradient{static_cast<Accum<T>>(eps)};
      if (launch_row_sums(gradient, N, D, args, waits, false, y) || !emits_y) return;
      const Operands<T> o{args.in[0].as<T>(), nullptr, args.in[1].as<T>(), nullptr, y};
      launch<false>(o, N, D, eps, as_stream(args.stream));
    };
  });
}

}  // namespace tokamak::gpu
