#include "tokamak/gpu/row_sums.cuh"
#include "tokamak/gpu/rows.cuh"
#include "tokamak/ops/rms_norm.h"

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

// y = w T(x r), r = 1 / sqrt(mean(x^2) + eps): a group of threads holds a row, P accesses each; x
// is read once, y written once.
template <int P, class T>
__global__ void __launch_bounds__(1024)
    rms_norm(const T* x, const T* w, T* y, int64_t N, int D, int group, Accum<T> eps) {
  using A = Accum<T>;
  constexpr int K = Pack<T>::kSize;
  const int thread = static_cast<int>(threadIdx.x);
  const int member = thread % group;
  const int64_t rows = blockDim.x / group;
  const int64_t n = static_cast<int64_t>(blockIdx.x) * rows + thread / group;
  T v[P][K];
  A squares[1] = {A{0}};
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
#pragma unroll
  for (int p = 0; p < P; ++p) {
#pragma unroll
    for (int k = 0; k < K; ++k) squares[0] += to<A>(v[p][k]) * to<A>(v[p][k]);
  }
  group_sums(squares, group, 0);
  const A r = reciprocal_rms(squares[0], D, eps);
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int d = (p * group + member) * K;
    if (n >= N || d >= D) continue;
    T weight[K];
    load<K>(w + d, weight);
#pragma unroll
    for (int k = 0; k < K; ++k) v[p][k] = scale(v[p][k], weight[k], r);
    store<K>(y + n * D + d, v[p]);
  }
}

// The same for any row: a block a row, which is read twice.
template <class T>
__global__ void __launch_bounds__(kThreads)
    rms_norm_of_any(const T* x, const T* w, T* y, int D, Accum<T> eps) {
  using A = Accum<T>;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * D;
  A squares{0};
  for (int d = static_cast<int>(threadIdx.x); d < D; d += kThreads) {
    const A v = to<A>(x[at + d]);
    squares += v * v;
  }
  const A r = reciprocal_rms(block_sum(squares), D, eps);
  for (int d = static_cast<int>(threadIdx.x); d < D; d += kThreads)
    y[at + d] = scale(x[at + d], w[d], r);
}

template <class T>
void launch(const T* x, const T* w, T* y, int64_t N, int64_t D, Accum<T> eps, cudaStream_t stream) {
  constexpr int64_t kPacks = 4;
  if (N == 0 || D == 0) return;
  const int width = static_cast<int>(D);
  const int64_t packs = D / Pack<T>::kSize;
  if (!is_packed<T>(D, x, w, y) || packs > 1024 * kPacks) {
    rms_norm_of_any<<<static_cast<unsigned>(N), kThreads, 0, stream>>>(x, w, y, width, eps);
  } else {
    const bool one = packs <= 32;
    const RowGroups to = row_groups(packs, one ? 1 : kPacks, 128);
    const auto blocks = static_cast<unsigned>((N + to.rows - 1) / to.rows);
    const auto kernel = one ? rms_norm<1, T> : rms_norm<kPacks, T>;
    kernel<<<blocks, to.threads(), 0, stream>>>(x, w, y, N, width, to.group, eps);
  }
  TOK_CUDA_LAUNCHED();
}

// With h = x r: dx = r (w dy - h mean(w dy h)), dw += dy h; see row_sums.cuh.
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
      sums[0] += x * x;
      sums[1] += w * dy * x;
    });
    row.sum(sums);
    const A r = reciprocal_rms(sums[0], D, eps);
    return {r, sums[1] * r * r / static_cast<A>(D)};
  }

  __device__ T apply(const Statistics& s, A x, A w, A dy, A (&sums)[kSums]) const {
    sums[0] += dy * x * s.r;
    return to<T>(s.r * (w * dy - x * s.scale));
  }
};

}  // namespace

Kernel prepare(const RmsNorm& op, const KernelTypes& types, const Setup&) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [=, eps = op.eps]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      launch<T>(args.in[0].as<T>(), args.in[1].as<T>(), args.out[0].as<T>(), N, D, eps,
                as_stream(args.stream));
    };
  });
}

Kernel prepare(const RmsNormGrad& op, const KernelTypes& types, const Setup&) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [=, eps = op.eps]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      launch_row_sums(Gradient<T>{static_cast<Accum<T>>(eps)}, N, D, args);
    };
  });
}

}  // namespace tokamak::gpu
