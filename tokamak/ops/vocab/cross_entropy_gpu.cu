#include <limits>

#include "tokamak/gpu/spans.cuh"
#include "tokamak/ops/vocab/cross_entropy.h"

namespace tokamak::gpu {
namespace {

// N tokens, rows of `width` logits of which the first V are vocabulary entries.

constexpr int kRowThreads = 512;

// bf16 uses the hardware's 2^x, which flushes subnormal results to 0: __expf spends three more
// instructions on them, and the statistics have ten to spare.
template <class T>
__device__ float exp_of(float x) {
  if constexpr (sizeof(T) > 2) return expf(x);
#ifdef TOK_HIP
  return __expf(x);
#else
  float y = 0.0F;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504F));
  return y;
#endif
}

template <class T>
__device__ double exp_of(double x) {
  return exp(x);
}

template <class A>
__device__ A block_max(A x) {
  __shared__ A parts[32];
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x = fmax(x, __shfl_xor_sync(0xFFFFFFFFU, x, d));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = parts[lane < static_cast<int>(blockDim.x) / 32 ? lane : 0];
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x = fmax(x, __shfl_xor_sync(0xFFFFFFFFU, x, d));
  return x;
}

// stats[n] = (max, sum of exp(x - max), logit of the label): one block per row, which it reads
// once. The running maximum starts with a finite number, so that entries of -infinity count 0.
template <class T>
__global__ void __launch_bounds__(kRowThreads, 2)
    softmax_stats(const T* x, const int32_t* labels, Accum<T>* stats, int width, int V,
                  int64_t first) {
  using A = Accum<T>;
  const int64_t n = blockIdx.x;
  const T* row = x + n * width;
  A max = std::numeric_limits<A>::lowest();
  A sum{0};
  const T none = to<T>(-std::numeric_limits<A>::infinity());
  for_values<4>(row, V, none, [&]<int M>(const T(&values)[M]) {
    A most = max;
#pragma unroll
    for (int i = 0; i < M; ++i) most = fmax(to<A>(values[i]), most);
    sum *= exp_of<T>(max - most);
    max = most;
#pragma unroll
    for (int i = 0; i < M; ++i) sum += exp_of<T>(to<A>(values[i]) - most);
  });
  const A most = block_max(max);
  sum = block_sum(sum * exp_of<T>(max - most));
  if (threadIdx.x != 0) return;
  const int64_t label = labels[n] - first;
  stats[3 * n] = most;
  stats[3 * n + 1] = sum;
  stats[3 * n + 2] = label >= 0 && label < V ? to<A>(row[label]) : A{0};
}

// Each thread combines one token's statistics.
template <class T>
struct Combine {
  using A = Accum<T>;
  const T* parts;
  T* stats;
  int64_t R, N;

  __device__ A part(int64_t r, int64_t n, int i) const { return to<A>(parts[(r * N + n) * 3 + i]); }

  __device__ void operator()(int64_t n) const {
    A max = part(0, n, 0);
    for (int64_t r = 1; r < R; ++r) max = fmax(part(r, n, 0), max);
    A sum{0};
    A target{0};
    for (int64_t r = 0; r < R; ++r) {
      sum += part(r, n, 1) * exp(part(r, n, 0) - max);
      target += part(r, n, 2);
    }
    stats[3 * n] = to<T>(max);
    stats[3 * n + 1] = to<T>(sum);
    stats[3 * n + 2] = to<T>(target);
  }
};

constexpr int kLossThreads = 1024;

// loss (+)= scale * sum of max + log(sum) - target: one block, so that the order is fixed.
template <class T>
__global__ void __launch_bounds__(kLossThreads)
    nll(const T* stats, const int32_t* labels, const float* scale, double* loss, int64_t N,
        int32_t ignored, bool add) {
  double total = 0.0;
#pragma unroll 4
  for (int64_t n = threadIdx.x; n < N; n += kLossThreads) {
    const auto max = to<double>(stats[3 * n]);
    const auto sum = to<double>(stats[3 * n + 1]);
    const auto target = to<double>(stats[3 * n + 2]);
    if (labels[n] != ignored) total += (max - target) + log(sum);
  }
  total = block_sum(total) * static_cast<double>(*scale);
  if (threadIdx.x == 0) *loss = add ? *loss + total : total;
}

template <class T, bool kCaps>
struct Probability {
  using A = Accum<T>;
  A max, factor, scale, cap;
  int label;  // negative: outside
  int V;

  template <int M>
  __device__ void apply(int at, T (&values)[M]) const {
    A p[M];
#pragma unroll
    for (int i = 0; i < M; ++i) p[i] = exp_of<T>(to<A>(values[i]) - max) * factor;
    if (label >= at && label < at + M) {
#pragma unroll
      for (int i = 0; i < M; ++i) p[i] -= at + i == label ? scale : A{0};
    }
    if constexpr (kCaps) {
#pragma unroll
      for (int i = 0; i < M; ++i) {
        const A share = to<A>(values[i]) / cap;
        p[i] *= A{1} - share * share;
      }
    }
#pragma unroll
    for (int i = 0; i < M; ++i) values[i] = to<T>(p[i]);
    if (at + M <= V) return;
#pragma unroll
    for (int i = 0; i < M; ++i) {
      if (at + i >= V) values[i] = to<T>(A{0});
    }
  }
};

// dx = scale * exp(x - max) / sum, less scale at the label, times the slope of the cap, and 0 from
// column V on: one block per row; x is read once, dx is written once. dx may be x.
template <class T, class S, bool kCaps>
__global__ void __launch_bounds__(kRowThreads, sizeof(T) == 8 ? 1 : 3)
    cross_entropy_grad(const T* x, const int32_t* labels, const S* stats, const float* scale, T* dx,
                       int width, int V, int32_t ignored, int64_t first, double cap) {
  using A = Accum<T>;
  constexpr int K = Pack<T>::kSize;
  constexpr int kUnroll = 4;
  const int64_t n = blockIdx.x;
  const T* from = x + n * width;
  T* into = dx + n * width;
  const int thread = static_cast<int>(threadIdx.x);
  const bool counts = labels[n] != ignored;
  const A s = static_cast<A>(*scale);
  const auto stat = [&](int i) { return static_cast<A>(to<Accum<S>>(stats[3 * n + i])); };
  const int64_t column = labels[n] - first;
  const int label = column >= 0 && column < V ? static_cast<int>(column) : -1;
  const Probability<T, kCaps> probability{stat(0), s / stat(1), s, static_cast<A>(cap), label, V};
  const auto one = [&](int v) {
    T values[1] = {from[v]};
    probability.apply(v, values);
    into[v] = counts ? values[0] : to<T>(A{0});
  };
  const Span span(from, width);
  if (reinterpret_cast<uintptr_t>(from) % 16 != reinterpret_cast<uintptr_t>(into) % 16) {
    for (int v = thread; v < width; v += kRowThreads) one(v);
    return;
  }
  if (thread < span.head) one(thread);
  for (int i = thread; i < span.packs; i += kUnroll * kRowThreads) {
    uint4 raw[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int pack = i + u * kRowThreads;
      if (counts && pack < span.packs)
        raw[u] = *reinterpret_cast<const uint4*>(from + span.head + pack * K);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int pack = i + u * kRowThreads;
      if (pack >= span.packs) continue;
      const int v = span.head + pack * K;
      T values[K];
      memcpy(values, &raw[u], sizeof(uint4));
      probability.apply(v, values);
#pragma unroll
      for (int k = 0; k < K; ++k) values[k] = counts ? values[k] : to<T>(A{0});
      store<K>(into + v, values);
    }
  }
  if (thread < span.tail) one(width - span.tail + thread);
}

}  // namespace

Kernel prepare(const SoftmaxStats& op, const KernelTypes& types, const Setup&) {
  const int64_t N = types.in[0].dims[0];
  const auto width = static_cast<int>(types.in[0].dims[1]);
  const int V = op.valid_columns > 0 ? static_cast<int>(op.valid_columns) : width;
  return by_float(types.in[0].dtype, [=, first = op.first_column]<class T>() -> Kernel {
    return [=](const KernelArgs& a) {
      if (N == 0) return;
      softmax_stats<<<static_cast<unsigned>(N), kRowThreads, 0, as_stream(a.stream)>>>(
          a.in[0].as<T>(), a.in[1].as<int32_t>(), a.out[0].as<Accum<T>>(), width, V, first);
      TOK_CUDA_LAUNCHED();
    };
  });
}

Kernel prepare(const CombineStats&, const KernelTypes& types, const Setup&) {
  const int64_t R = types.in[0].dims[0];
  const int64_t N = types.in[0].dims[1];
  return by_float(types.in[0].dtype, [=]<class T>() -> Kernel {
    return [=](const KernelArgs& a) {
      launch_for(N, a.stream, Combine<T>{a.in[0].as<T>(), a.out[0].as<T>(), R, N});
    };
  });
}

Kernel prepare(const Nll& op, const KernelTypes& types, const Setup&) {
  const int64_t N = types.in[0].dims[0];
  return by_float(types.in[0].dtype, [=, ignored = op.ignore_index]<class T>() -> Kernel {
    return [=](const KernelArgs& a) {
      nll<<<1, kLossThreads, 0, as_stream(a.stream)>>>(a.in[0].as<T>(), a.in[1].as<int32_t>(),
                                                       a.in[2].as<float>(), a.out[0].as<double>(),
                                                       N, ignored, a.accumulate[0]);
      TOK_CUDA_LAUNCHED();
    };
  });
}

Kernel prepare(const CrossEntropyGrad& op, const KernelTypes& types, const Setup&) {
  const int64_t N = types.in[0].dims[0];
  const auto width = static_cast<int>(types.in[0].dims[1]);
  const int V = op.valid_columns > 0 ? static_cast<int>(op.valid_columns) : width;
  const int32_t ignored = op.ignore_index;
  const int64_t first = op.first_column;
  const double cap = op.cap;
  return by_float(types.in[0].dtype, [&]<class T>() {
    return by_float(types.in[2].dtype, [=]<class S>() -> Kernel {
      auto* const kernel =
          cap > 0.0 ? &cross_entropy_grad<T, S, true> : &cross_entropy_grad<T, S, false>;
      return [=](const KernelArgs& a) {
        if (N == 0 || width == 0) return;
        kernel<<<static_cast<unsigned>(N), kRowThreads, 0, as_stream(a.stream)>>>(
            a.in[0].as<T>(), a.in[1].as<int32_t>(), a.in[2].as<S>(), a.in[3].as<float>(),
            a.out[0].as<T>(), width, V, ignored, first, cap);
        TOK_CUDA_LAUNCHED();
      };
    });
  });
}

}  // namespace tokamak::gpu
