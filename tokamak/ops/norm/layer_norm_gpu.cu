#include <cstring>

#include "tokamak/gpu/row_sums.cuh"
#include "tokamak/gpu/rows.cuh"
#include "tokamak/ops/norm/layer_norm.h"

namespace tokamak::gpu {
namespace {

// N rows, D embed.

template <class A>
__device__ A reciprocal_deviation(A squares, int D, A eps) {
  return A{1} / sqrt(squares / static_cast<A>(D) + eps);
}

// What a norm reads and writes: y of x or, with a branch, of sum = T(x + branch), which may lie on
// either.
template <class T>
struct Operands {
  const T* x;
  const T* branch;
  const T* w;
  const T* b;
  T* sum;
  T* y;
};

template <class A>
struct Statistics {
  A mean, r;  // r = 1 / sqrt(variance + eps)
};

// f(x) of each element that this thread holds of a row of D, of which `group` threads hold P
// accesses each.
template <int P, class T, class F>
__device__ void for_each_element(const uint4 (&row)[P], int D, int group, const F& f) {
  constexpr int K = Pack<T>::kSize;
  const int member = static_cast<int>(threadIdx.x) % group;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    if ((p * group + member) * K >= D) continue;
    T x[K];
    memcpy(x, &row[p], sizeof(x));
#pragma unroll
    for (int k = 0; k < K; ++k) f(to<Accum<T>>(x[k]));
  }
}

// In one pass, of v = x - the row's first
// element: whatever the mean, the sum of v^2 is at most D + 1 times that of (x - mean)^2, which
// follows from it with all digits that bf16 has.
template <int P, class T, class A>
__device__ Statistics<A> in_one_pass(const uint4 (&row)[P], A first, int D, int group, A eps) {
  A sums[2] = {A{0}, A{0}};
  for_each_element<P, T>(row, D, group, [&](A x) {
    const A v = x - first;
    sums[0] += v;
    sums[1] += v * v;
  });
  group_sums(sums, group, 0);
  const A mean = sums[0] / static_cast<A>(D);
  const A squares = sums[1] - mean * sums[0];
  return {first + mean, reciprocal_deviation(fmax(squares, A{0}), D, eps)};
}

template <int P, class T, class A>
__device__ Statistics<A> in_two_passes(const uint4 (&row)[P], int D, int group, A eps) {
  A mean[1] = {A{0}};
  for_each_element<P, T>(row, D, group, [&](A x) { mean[0] += x; });
  group_sums(mean, group, 0);
  mean[0] /= static_cast<A>(D);
  A squares[1] = {A{0}};
  for_each_element<P, T>(row, D, group, [&](A x) {
    const A centred = x - mean[0];
    squares[0] += centred * centred;
  });
  group_sums(squares, group, 1);
  return {mean[0], reciprocal_deviation(squares[0], D, eps)};
}

// y = w (x - mean) r + b: a group of threads holds a row, P accesses each; x (and branch) is read
// once, y (and sum) written once.
template <int P, int kMostThreads, bool kAdds, class T>
__global__ void __launch_bounds__(kMostThreads)
    layer_norm(Operands<T> o, int64_t N, int D, int group, Accum<T> eps) {
  using A = Accum<T>;
  constexpr int K = Pack<T>::kSize;
  const int thread = static_cast<int>(threadIdx.x);
  const int member = thread % group;
  const int64_t rows = blockDim.x / group;
  const int64_t n = static_cast<int64_t>(blockIdx.x) * rows + thread / group;
  uint4 row[P];  // whole registers: elements of 2 bytes would take one each
  uint4 branch[P];
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int d = (p * group + member) * K;
    row[p] = branch[p] = uint4{};
    if (n >= N || d >= D) continue;
    row[p] = *reinterpret_cast<const uint4*>(o.x + n * D + d);
    if constexpr (kAdds) branch[p] = *reinterpret_cast<const uint4*>(o.branch + n * D + d);
  }
  A first = n < N ? to<A>(o.x[n * D]) : A{0};
  if constexpr (kAdds) {
    if (n < N) first = to<A>(to<T>(first + to<A>(o.branch[n * D])));
#pragma unroll
    for (int p = 0; p < P; ++p) {
      T v[K];
      T u[K];
      memcpy(v, &row[p], sizeof(v));
      memcpy(u, &branch[p], sizeof(u));
#pragma unroll
      for (int k = 0; k < K; ++k) v[k] = to<T>(to<A>(v[k]) + to<A>(u[k]));
      memcpy(&row[p], v, sizeof(v));
      // What begins the row waits until all threads have read it as `first`.
      const int d = (p * group + member) * K;
      if (n < N && d < D && d > 0) store<K>(o.sum + n * D + d, v);
    }
  }
  Statistics<A> of_row;
  if constexpr (sizeof(T) == 2) {
    of_row = in_one_pass<P, T>(row, first, D, group, eps);
  } else {
    of_row = in_two_passes<P, T>(row, D, group, eps);
  }
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int d = (p * group + member) * K;
    if (n >= N || d >= D) continue;
    T v[K];
    T weight[K];
    T bias[K];
    memcpy(v, &row[p], sizeof(v));
    if (kAdds && d == 0) store<K>(o.sum + n * D, v);
    load<K>(o.w + d, weight);
    load<K>(o.b + d, bias);
#pragma unroll
    for (int k = 0; k < K; ++k)
      v[k] = to<T>((to<A>(v[k]) - of_row.mean) * of_row.r * to<A>(weight[k]) + to<A>(bias[k]));
    store<K>(o.y + n * D + d, v);
  }
}

// The same for any row: a block a row, which is read three times.
template <bool kAdds, class T>
__global__ void __launch_bounds__(kThreads) layer_norm_of_any(Operands<T> o, int D, Accum<T> eps) {
  using A = Accum<T>;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * D;
  const int first = static_cast<int>(threadIdx.x);
  const T* x = kAdds ? o.sum : o.x;  // which this thread has written
  A sum{0};
  for (int d = first; d < D; d += kThreads) {
    if constexpr (kAdds) o.sum[at + d] = to<T>(to<A>(o.x[at + d]) + to<A>(o.branch[at + d]));
    sum += to<A>(x[at + d]);
  }
  const A mean = block_sum(sum) / static_cast<A>(D);
  A squares{0};
  for (int d = first; d < D; d += kThreads) {
    const A centred = to<A>(x[at + d]) - mean;
    squares += centred * centred;
  }
  const A r = reciprocal_deviation(block_sum(squares), D, eps);
  for (int d = first; d < D; d += kThreads)
    o.y[at + d] = to<T>((to<A>(x[at + d]) - mean) * r * to<A>(o.w[d]) + to<A>(o.b[d]));
}

template <bool kAdds, class T>
void launch(const Operands<T>& o, int64_t N, int64_t D, Accum<T> eps, cudaStream_t stream) {
  constexpr int64_t kPacks = 4;
  if (N == 0 || D == 0) return;
  const int width = static_cast<int>(D);
  const int64_t packs = D / Pack<T>::kSize;
  if (!is_packed<T>(D, o.x, o.branch, o.w, o.b, o.sum, o.y) || packs > 1024 * kPacks) {
    layer_norm_of_any<kAdds><<<static_cast<unsigned>(N), kThreads, 0, stream>>>(o, width, eps);
  } else {
    const bool one = packs <= 32;
    const RowGroups to = row_groups(packs, one ? 1 : kPacks, 128);
    const auto blocks = static_cast<unsigned>((N + to.rows - 1) / to.rows);
    const auto kernel = one                   ? layer_norm<1, 128, kAdds, T>
                        : to.threads() <= 256 ? layer_norm<kPacks, 256, kAdds, T>
                                              : layer_norm<kPacks, 1024, kAdds, T>;
    kernel<<<blocks, to.threads(), 0, stream>>>(o, N, width, to.group, eps);
  }
  TOK_CUDA_LAUNCHED();
}

// With h = (x - mean) r and g = w dy: dx (+)= r (g - mean(g) - h mean(g h)), dw += dy h, db += dy;
// see row_sums.cuh.
template <class T>
struct Gradient {
  using Element = T;
  using A = Accum<T>;
  static constexpr int kSums = 2;
  static constexpr int kRowSums = 4;

  struct Statistics {
    A mean, r, r_mean_g, r_mean_gh;
  };

  A eps;

  template <class Row>
  __device__ Statistics statistics(const Row& row, int D) const {
    if constexpr (sizeof(T) == 2) {
      A sums[kRowSums] = {A{0}, A{0}, A{0}, A{0}};
      row.each([&](A x, A w, A dy) { add(sums, row.first, x, w, dy); });
      row.sum(sums);
      return finish(sums, row.first, D);
    } else {
      return in_two_passes(row, D);
    }
  }

  // In one pass, as above.
  __device__ void add(A (&sums)[kRowSums], A first, A x, A w, A dy) const {
    const A v = x - first;
    const A g = w * dy;
    sums[0] += v;
    sums[1] += v * v;
    sums[2] += g;
    sums[3] += g * v;
  }

  __device__ Statistics finish(const A (&sums)[kRowSums], A first, int D) const {
    const A share = A{1} / static_cast<A>(D);
    const A mean = sums[0] * share;
    const A r = rsqrt(fmax(sums[1] * share - mean * mean, A{0}) + eps);
    const A mean_gh = (sums[3] - mean * sums[2]) * share * r;
    return {first + mean, r, r * sums[2] * share, r * mean_gh};
  }

  __device__ A apply(const Statistics& s, A x, A w, A dy, A (&sums)[kSums]) const {
    const A h = (x - s.mean) * s.r;
    sums[0] += dy * h;
    sums[1] += dy;
    return s.r * (w * dy) - (s.r_mean_g + h * s.r_mean_gh);
  }

 private:
  template <class Row>
  __device__ Statistics in_two_passes(const Row& row, int D) const {
    A sum[1] = {A{0}};
    row.each([&](A x, A, A) { sum[0] += x; });
    row.sum(sum);
    const A mean = sum[0] / static_cast<A>(D);
    A sums[3] = {A{0}, A{0}, A{0}};
    row.each([&](A x, A w, A dy) {
      const A v = x - mean;
      const A g = w * dy;
      sums[0] += v * v;
      sums[1] += g;
      sums[2] += g * v;
    });
    row.sum(sums);
    const A r = reciprocal_deviation(sums[0], D, eps);
    return {mean, r, r * sums[1] / static_cast<A>(D), r * (sums[2] * r / static_cast<A>(D))};
  }
};

}  // namespace

Kernel prepare(const LayerNorm& op, const KernelTypes& types, const Setup&) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [=, eps = op.eps]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      const Operands<T> o{.x = args.in[0].as<T>(),
                          .branch = nullptr,
                          .w = args.in[1].as<T>(),
                          .b = args.in[2].as<T>(),
                          .sum = nullptr,
                          .y = args.out[0].as<T>()};
      launch<false>(o, N, D, eps, as_stream(args.stream));
    };
  });
}

Kernel prepare(const AddLayerNorm& op, const KernelTypes& types, const Setup&) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [=, eps = op.eps]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      const Operands<T> o{.x = args.in[0].as<T>(),
                          .branch = args.in[1].as<T>(),
                          .w = args.in[2].as<T>(),
                          .b = args.in[3].as<T>(),
                          .sum = args.out[0].as<T>(),
                          .y = args.out[1].as<T>()};
      launch<true>(o, N, D, eps, as_stream(args.stream));
    };
  });
}

Kernel prepare(const LayerNormGrad& op, const KernelTypes& types, const Setup& setup) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [&, eps = op.eps]<class T>() -> Kernel {
    const bool streams = prepare_stream<Gradient<T>>(D, *setup.device);
    return [=, waits = can_wait_for_previous(setup)](const KernelArgs& args) {
      launch_row_sums(Gradient<T>{static_cast<Accum<T>>(eps)}, N, D, args, waits, streams);
    };
  });
}

}  // namespace tokamak::gpu
