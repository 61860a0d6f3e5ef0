#include "tokamak/gpu/row_sums.cuh"
#include "tokamak/gpu/rows.cuh"
#include "tokamak/ops/layer_norm.h"

namespace tokamak::gpu {
namespace {

// N rows, D embed.

template <class A>
__device__ A reciprocal_deviation(A squares, int D, A eps) {
  return A{1} / sqrt(squares / static_cast<A>(D) + eps);
}

// y = w (x - mean) r + b, r = 1 / sqrt(variance + eps): a group of threads holds a row, P accesses
// each; x is read once, y written once.
template <int P, class T>
__global__ void __launch_bounds__(1024) layer_norm(const T* x, const T* w, const T* b, T* y,
                                                   int64_t N, int D, int group, Accum<T> eps) {
  using A = Accum<T>;
  constexpr int K = Pack<T>::kSize;
  const int thread = static_cast<int>(threadIdx.x);
  const int member = thread % group;
  const int64_t rows = blockDim.x / group;
  const int64_t n = static_cast<int64_t>(blockIdx.x) * rows + thread / group;
  T v[P][K];
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int d = (p * group + member) * K;
    if (n < N && d < D) {
      load<K>(x + n * D + d, v[p]);
    } else {
#pragma unroll
      for (int k = 0; k < K; ++k) v[p][k] = to<T>(A{0});
    }
  }
  A mean[1] = {A{0}};
#pragma unroll
  for (int p = 0; p < P; ++p) {
#pragma unroll
    for (int k = 0; k < K; ++k) mean[0] += to<A>(v[p][k]);
  }
  group_sums(mean, group, 0);
  mean[0] /= static_cast<A>(D);
  A squares[1] = {A{0}};
#pragma unroll
  for (int p = 0; p < P; ++p) {
    if ((p * group + member) * K >= D) continue;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const A centred = to<A>(v[p][k]) - mean[0];
      squares[0] += centred * centred;
    }
  }
  group_sums(squares, group, 1);
  const A r = reciprocal_deviation(squares[0], D, eps);
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int d = (p * group + member) * K;
    if (n >= N || d >= D) continue;
    T weight[K];
    T bias[K];
    load<K>(w + d, weight);
    load<K>(b + d, bias);
#pragma unroll
    for (int k = 0; k < K; ++k)
      v[p][k] = to<T>((to<A>(v[p][k]) - mean[0]) * r * to<A>(weight[k]) + to<A>(bias[k]));
    store<K>(y + n * D + d, v[p]);
  }
}

// The same for any row: a block a row, which is read three times.
template <class T>
__global__ void __launch_bounds__(kThreads)
    layer_norm_of_any(const T* x, const T* w, const T* b, T* y, int D, Accum<T> eps) {
  using A = Accum<T>;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * D;
  const int first = static_cast<int>(threadIdx.x);
  A sum{0};
  for (int d = first; d < D; d += kThreads) sum += to<A>(x[at + d]);
  const A mean = block_sum(sum) / static_cast<A>(D);
  A squares{0};
  for (int d = first; d < D; d += kThreads) {
    const A centred = to<A>(x[at + d]) - mean;
    squares += centred * centred;
  }
  const A r = reciprocal_deviation(block_sum(squares), D, eps);
  for (int d = first; d < D; d += kThreads)
    y[at + d] = to<T>((to<A>(x[at + d]) - mean) * r * to<A>(w[d]) + to<A>(b[d]));
}

template <class T>
void launch(const KernelArgs& args, int64_t N, int64_t D, Accum<T> eps) {
  constexpr int64_t kPacks = 4;
  if (N == 0 || D == 0) return;
  const T* x = args.in[0].as<T>();
  const T* w = args.in[1].as<T>();
  const T* b = args.in[2].as<T>();
  T* y = args.out[0].as<T>();
  const cudaStream_t stream = as_stream(args.stream);
  const int width = static_cast<int>(D);
  const int64_t packs = D / Pack<T>::kSize;
  if (!is_packed<T>(D, x, w, b, y) || packs > 1024 * kPacks) {
    layer_norm_of_any<<<static_cast<unsigned>(N), kThreads, 0, stream>>>(x, w, b, y, width, eps);
  } else {
    const bool one = packs <= 32;
    const RowGroups to = row_groups(packs, one ? 1 : kPacks, 128);
    const auto blocks = static_cast<unsigned>((N + to.rows - 1) / to.rows);
    const auto kernel = one ? layer_norm<1, T> : layer_norm<kPacks, T>;
    kernel<<<blocks, to.threads(), 0, stream>>>(x, w, b, y, N, width, to.group, eps);
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

  // In one pass, of v = x - the row's first element. Whatever the mean, the sum of v^2 is at most D
  // + 1 times that of (x - mean)^2, which follows from it with all digits that bf16 has.
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
    return [=](const KernelArgs& args) { launch<T>(args, N, D, eps); };
  });
}

Kernel prepare(const LayerNormGrad& op, const KernelTypes& types, const Setup& setup) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [&, eps = op.eps]<class T>() -> Kernel {
    const bool streams = prepare_stream<Gradient<T>>(D, *setup.device);
    return [=](const KernelArgs& args) {
      launch_row_sums(Gradient<T>{static_cast<Accum<T>>(eps)}, N, D, args, streams);
    };
  });
}

}  // namespace tokamak::gpu
