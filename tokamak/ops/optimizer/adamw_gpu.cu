#include "tokamak/gpu/ranges.cuh"
#include "tokamak/ops/optimizer/adamw.h"

namespace tokamak::gpu {
namespace {

// A step's constants from the op; its other scalars are on the device.
struct Constants {
  double beta1, beta2, eps;
  bool decoupled;
};

// The scalars of one step, rounded once from double as torch rounds them.
template <class A>
struct Coefficients {
  A keep, decay, rate1, beta2, rate2, root2, eps, step, factor;

  __device__ Coefficients(const Constants& op, double weight_decay, const double* scalars,
                          float clip)
      : keep(static_cast<A>(op.decoupled ? 1.0 - scalars[0] * weight_decay : 1.0)),
        decay(static_cast<A>(op.decoupled ? 0.0 : weight_decay)),
        rate1(static_cast<A>(1.0 - op.beta1)),
        beta2(static_cast<A>(op.beta2)),
        rate2(static_cast<A>(1.0 - op.beta2)),
        root2(static_cast<A>(sqrt(scalars[2]))),
        eps(static_cast<A>(op.eps)),
        step(static_cast<A>(-(scalars[0] / scalars[1]))),
        factor(static_cast<A>(clip)) {}

  template <class T, class G>
  __device__ void update(T& w, T& m, T& v, G gradient) const {
    const A w0 = to<A>(w);
    const A m0 = to<A>(m);
    const A g = to<A>(to<Accum<G>>(gradient)) * factor + decay * w0;
    const A m1 = rate1 < A{0.5} ? m0 + rate1 * (g - m0) : g - (g - m0) * (A{1} - rate1);
    const A v1 = to<A>(v) * beta2 + rate2 * g * g;
    w = to<T>(w0 * keep + step * m1 / (sqrt(v1) / root2 + eps));
    m = to<T>(m1);
    v = to<T>(v1);
  }
};

// `copy` may be null.
template <class T, class G, class C>
struct State {
  T* w;
  T* m;
  T* v;
  const G* g;
  C* copy;

  template <int K, class A>
  __device__ void update(const Coefficients<A>& c, int64_t i) const {
    T weight[K];
    T first[K];
    T second[K];
    G gradient[K];
    load<K>(w + i, weight);
    load<K>(m + i, first);
    load<K>(v + i, second);
    load<K>(g + i, gradient);
#pragma unroll
    for (int k = 0; k < K; ++k) c.update(weight[k], first[k], second[k], gradient[k]);
    store<K>(w + i, weight);
    store<K>(m + i, first);
    store<K>(v + i, second);
    if (copy == nullptr) return;
    C rounded[K];
#pragma unroll
    for (int k = 0; k < K; ++k) rounded[k] = to<C>(weight[k]);
    if constexpr (sizeof(rounded) == sizeof(uint2)) {
      uint2 word;
      memcpy(&word, rounded, sizeof(word));
      *reinterpret_cast<uint2*>(copy + i) = word;
    } else {
      store<K>(copy + i, rounded);
    }
  }
};

// Elements per block; blocks begin at multiples of it, so that they are aligned.
constexpr int64_t kBlock = 8192;

// A thread takes K elements of each array at a time, 16 bytes or more of each array. It moves 28
// bytes (fp32) or 16 bytes (bf16 with fp32 gradients) per element, and its copy.
template <int K, class T, class G, class C>
__global__ void __launch_bounds__(kThreads)
    adamw(const __grid_constant__ BlockRanges ranges, int64_t first, const Constants op,
          const State<T, G, C> state, const double* scalars, const float* clip) {
  const float factor = *clip;
  if (!isfinite(factor)) return;
  const int64_t block = first + blockIdx.x;
  const BlockRange& range = ranges.all[ranges.range_of(block)];
  const Coefficients<Accum<T>> c(op, range.value, scalars, factor);
  const int64_t at = (range.begin / kBlock + block - range.first_block) * kBlock;
  const int64_t begin = at > range.begin ? at : range.begin;
  const int64_t end = at + kBlock < range.end ? at + kBlock : range.end;
  const int64_t aligned_begin = (begin + K - 1) / K * K;
  const int64_t aligned_end = end / K * K;
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t i = aligned_begin + thread * K; i < aligned_end; i += kThreads * K)
    state.template update<K>(c, i);
  if constexpr (K > 1) {
    // Fewer than K elements lie before the aligned part and after it.
    const int64_t before = aligned_begin < end ? aligned_begin : end;
    if (begin + thread < before) state.template update<1>(c, begin + thread);
    const int64_t after = aligned_end > before ? aligned_end : before;
    if (after + thread < end) state.template update<1>(c, after + thread);
  }
}

template <class T, class G>
constexpr int kWidth = std::max(Pack<T>::kSize, Pack<G>::kSize);

// Returns the kernel with copies of type C.
template <class T, class G, class C>
Kernel kernel_of(const AdamW& op, const KernelTypes& types) {
  std::vector<BlockRange> ranges;
  for (const AdamW::DecayRange& r : op.ranges)
    ranges.push_back({.begin = r.begin, .end = r.end, .value = r.weight_decay});
  if (op.ranges.empty()) ranges = {{.end = types.in[0].numel(), .value = op.weight_decay}};
  const Constants constants{
      .beta1 = op.beta1, .beta2 = op.beta2, .eps = op.eps, .decoupled = op.decoupled};
  const auto blocks_of = [](const BlockRange& r) {
    return r.begin == r.end ? 0 : (r.end + kBlock - 1) / kBlock - r.begin / kBlock;
  };
  return [=, has_copy = op.has_copy](const KernelArgs& a) {
    const State<T, G, C> state{a.out[0].as<T>(), a.out[1].as<T>(), a.out[2].as<T>(),
                               a.in[3].as<G>(), has_copy ? a.out[3].as<C>() : nullptr};
    const bool aligned = detail::is_aligned(state.w) && detail::is_aligned(state.m) &&
                         detail::is_aligned(state.v) && detail::is_aligned(state.g) &&
                         detail::is_aligned(state.copy);
    const auto kernel = aligned ? adamw<kWidth<T, G>, T, G, C> : adamw<1, T, G, C>;
    const auto launch = [&](const BlockRanges& group, int64_t first, int64_t n) {
      kernel<<<static_cast<unsigned>(n), kThreads, 0, as_stream(a.stream)>>>(
          group, first, constants, state, a.in[4].as<double>(), a.in[5].as<float>());
      TOK_CUDA_LAUNCHED();
    };
    for_range_groups(ranges, blocks_of, launch);
  };
}

}  // namespace

Kernel prepare(const AdamW& op, const KernelTypes& types, const Setup&) {
  return by_float(types.in[0].dtype, [&]<class T>() {
    return by_float(types.in[3].dtype, [&]<class G>() -> Kernel {
      if (!op.has_copy) return kernel_of<T, G, T>(op, types);
      return by_float(types.out[3].dtype, [&]<class C>() { return kernel_of<T, G, C>(op, types); });
    });
  });
}

}  // namespace tokamak::gpu
