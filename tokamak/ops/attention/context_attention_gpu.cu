#include <bit>
#include <limits>

#include "tokamak/gpu/dispatch.cuh"
#include "tokamak/ops/attention/context_attention.h"

namespace tokamak::gpu {
namespace {

// The weights of the two parts of a softmax in their sum.
template <class A>
struct Weights {
  A lse, first, second;

  __device__ Weights(A a, A b) {
    const A max = a > b ? a : b;
    if (max == -std::numeric_limits<A>::infinity()) {
      lse = max;
      first = A{1};
      second = A{0};
      return;
    }
    lse = max + log(exp(a - max) + exp(b - max));
    first = exp(a - lse);
    second = exp(b - lse);
  }
};

// B batch, S queries, P of them in the part, H heads, D head dim.
struct Shape {
  int64_t B, S, P, H, D, first;
};

// o = first o + second part, lse = log(e^lse + e^part_lse): `group` threads of a warp take a head
// of a query; o is read and written, the part read once.
template <int K, class T, class A>
__global__ void __launch_bounds__(kThreads)
    merge(const T* part, const A* part_lse, A* o, A* lse, const Shape shape, int group) {
  const auto& [B, S, P, H, D, first] = shape;
  const int thread = static_cast<int>(threadIdx.x);
  const int member = thread % group;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / group) + thread / group;
  const bool inside = row < B * P * H;
  // Divisions of 32 bits suffice: no memory holds more rows than they can count.
  const auto query = static_cast<uint32_t>(row) / static_cast<uint32_t>(H);
  const int64_t h = static_cast<uint32_t>(row) % static_cast<uint32_t>(H);
  const int64_t p = query % static_cast<uint32_t>(P);
  const int64_t b = query / static_cast<uint32_t>(P);
  const int64_t at = (b * H + h) * S + first + p;
  const int leader = thread % 32 / group * group;
  A total{0};
  A addition{0};
  if (inside && member == 0) {
    total = lse[at];
    addition = part_lse[(b * H + h) * P + p];
  }
  const Weights<A> w(__shfl_sync(0xFFFFFFFFU, total, leader),
                     __shfl_sync(0xFFFFFFFFU, addition, leader));
  if (!inside) return;
  if (member == 0) lse[at] = w.lse;
  A* to_row = o + ((b * S + first + p) * H + h) * D;
  const T* from_row = part + row * D;
  for (int64_t d = member * K; d < D; d += group * K) {
    A sum[K];
    T addend[K];
    load<K>(to_row + d, sum);
    load<K>(from_row + d, addend);
#pragma unroll
    for (int k = 0; k < K; ++k)
      sum[k] = w.first * sum[k] + w.second * to<A>(to<Accum<T>>(addend[k]));
    store<K>(to_row + d, sum);
  }
}

template <class T, class A>
void run(const Shape& shape, const KernelArgs& a) {
  const cudaStream_t stream = as_stream(a.stream);
  for (size_t k = 0; k < 2; ++k) {
    const auto bytes = static_cast<size_t>(a.in[k].type.bytes());
    if (a.in[k].data == a.out[k].data || bytes == 0) continue;
    TOK_CUDA(cudaMemcpyAsync(a.out[k].data, a.in[k].data, bytes, cudaMemcpyDeviceToDevice, stream));
  }
  const int64_t rows = shape.B * shape.P * shape.H;
  if (rows == 0 || shape.D == 0) return;
  constexpr int kWidth = std::max(Pack<T>::kSize, Pack<A>::kSize);
  const T* part = a.in[2].as<T>();
  A* o = a.out[0].as<A>();
  const bool wide = shape.D % kWidth == 0 && detail::is_aligned(part) && detail::is_aligned(o);
  const int64_t accesses = wide ? shape.D / kWidth : shape.D;
  const auto group =
      static_cast<int>(std::bit_ceil(static_cast<uint64_t>(std::min<int64_t>(accesses, 32))));
  const auto kernel = wide ? merge<kWidth, T, A> : merge<1, T, A>;
  kernel<<<blocks_for(rows * group), kThreads, 0, stream>>>(part, a.in[3].as<A>(), o,
                                                            a.out[1].as<A>(), shape, group);
  TOK_CUDA_LAUNCHED();
}

}  // namespace

Kernel prepare(const MergeAttention& op, const KernelTypes& types, const Setup&) {
  const Dims& x = types.in[0].dims;
  const Shape shape{
      .B = x[0], .S = x[1], .P = types.in[2].dims[1], .H = x[2], .D = x[3], .first = op.first};
  const bool is_double = types.in[0].dtype == DType::kF64;
  return by_float(types.in[2].dtype, [&]<class T>() -> Kernel {
    if (is_double) return [shape](const KernelArgs& a) { run<T, double>(shape, a); };
    return [shape](const KernelArgs& a) { run<T, float>(shape, a); };
  });
}

}  // namespace tokamak::gpu
