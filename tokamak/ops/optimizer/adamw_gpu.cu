#include <type_traits>

#include "tokamak/core/random.h"
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

  template <class Round, class T, class M, class G>
  __device__ void update(T& w, M& m, M& v, G gradient, uint32_t word) const {
    const A w0 = to<A>(w);
    const A m0 = to<A>(to<Accum<M>>(m));
    const A g = to<A>(to<Accum<G>>(gradient)) * factor + decay * w0;
    const A m1 = rate1 < A{0.5} ? m0 + rate1 * (g - m0) : g - (g - m0) * (A{1} - rate1);
    const A v1 = to<A>(to<Accum<M>>(v)) * beta2 + rate2 * g * g;
    w = to<T>(w0 * keep + step * m1 / (sqrt(v1) / root2 + eps));
    Round{}(m, m1, word & 0xFFFFU);
    Round{}(v, v1, word >> 16U);
  }
};

// Stores x by nearest rounding.
struct Nearest {
  template <class M, class A>
  __device__ void operator()(M& m, A x, uint32_t) const {
    m = to<M>(to<Accum<M>>(x));
  }
};

// Stores x by 16 random bits.
struct Stochastic {
  template <class A>
  __device__ void operator()(__nv_bfloat16& m, A x, uint32_t random) const {
    const uint16_t bits = round_stochastically(__float_as_uint(to<float>(x)), random);
    memcpy(&m, &bits, sizeof(m));
  }
};

// A range with its weight decay and where its elements lie in their tensor.
struct PlacedRange : BlockRange {
  uint64_t stream = 0;
  ElementPlaces places;

  // Makes the words of elements i to i + K - 1 of the flat tensor.
  template <int K>
  __device__ void words(uint64_t seed, int64_t step, int64_t i, uint32_t (&into)[K]) const {
    const int64_t element = places(i - begin);
    if constexpr (K % 4 == 0) {
      if (element % 4 == 0 && places.run(i - begin) >= K) {
#pragma unroll
        for (int k = 0; k < K; k += 4) {
          const auto four = philox(seed, rounding_counter(step, element + k), stream);
#pragma unroll
          for (int j = 0; j < 4; ++j) into[k + j] = four[j];
        }
        return;
      }
    }
    for (int k = 0; k < K; ++k) {
      const int64_t at = places(i - begin + k);
      into[k] = philox(seed, rounding_counter(step, at), stream)[at % 4];
    }
  }
};

// Stores K elements; those of a narrow copy as one 8-byte word.
template <int K, class C>
__device__ void store_copy(C* copy, const C (&rounded)[K]) {
  if constexpr (sizeof(rounded) == sizeof(uint2)) {
    uint2 word;
    memcpy(&word, rounded, sizeof(word));
    *reinterpret_cast<uint2*>(copy) = word;
  } else {
    store<K>(copy, rounded);
  }
}

// `copy` may be null.
template <class Round, class T, class M, class G, class C>
struct State {
  T* w;
  M* m;
  M* v;
  const G* g;
  C* copy;
  uint64_t seed;
  int64_t step;

  template <int K, class A>
  __device__ void update(const Coefficients<A>& c, const PlacedRange& range, int64_t i) const {
    T weight[K];
    M first[K];
    M second[K];
    G gradient[K];
    uint32_t words[K] = {};
    load<K>(w + i, weight);
    load<K>(m + i, first);
    load<K>(v + i, second);
    load<K>(g + i, gradient);
    if constexpr (std::is_same_v<Round, Stochastic>) range.words(seed, step, i, words);
#pragma unroll
    for (int k = 0; k < K; ++k)
      c.template update<Round>(weight[k], first[k], second[k], gradient[k], words[k]);
    store<K>(w + i, weight);
    store<K>(m + i, first);
    store<K>(v + i, second);
    if (copy == nullptr) return;
    C rounded[K];
#pragma unroll
    for (int k = 0; k < K; ++k) rounded[k] = to<C>(weight[k]);
    store_copy<K>(copy + i, rounded);
  }
};

// Elements per block; blocks begin at multiples of it, so that they are aligned.
constexpr int64_t kBlock = 8192;

// A thread takes K elements of each array at a time, 16 bytes or more of each array. It moves 28
// bytes (fp32), 20 bytes (bf16 moments of fp32) or 16 bytes (bf16 with fp32 gradients) per element,
// and its copy.
template <int K, class Round, class T, class M, class G, class C>
__global__ void __launch_bounds__(kThreads)
    adamw(const __grid_constant__ RangeGroup<PlacedRange> ranges, int64_t first, const Constants op,
          State<Round, T, M, G, C> state, const double* scalars, const float* clip) {
  const float factor = *clip;
  if (!isfinite(factor)) return;
  const int64_t block = first + blockIdx.x;
  const PlacedRange& range = ranges.all[ranges.range_of(block)];
  const Coefficients<Accum<T>> c(op, range.value, scalars, factor);
  state.step = static_cast<int64_t>(scalars[3]);
  const int64_t at = (range.begin / kBlock + block - range.first_block) * kBlock;
  const int64_t begin = at > range.begin ? at : range.begin;
  const int64_t end = at + kBlock < range.end ? at + kBlock : range.end;
  const int64_t aligned_begin = (begin + K - 1) / K * K;
  const int64_t aligned_end = end / K * K;
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t i = aligned_begin + thread * K; i < aligned_end; i += kThreads * K)
    state.template update<K>(c, range, i);
  if constexpr (K > 1) {
    // Fewer than K elements lie before the aligned part and after it.
    const int64_t before = aligned_begin < end ? aligned_begin : end;
    if (begin + thread < before) state.template update<1>(c, range, begin + thread);
    const int64_t after = aligned_end > before ? aligned_end : before;
    if (after + thread < end) state.template update<1>(c, range, after + thread);
  }
}

template <class T, class M, class G>
constexpr int kWidth = std::max({Pack<T>::kSize, Pack<M>::kSize, Pack<G>::kSize});

std::vector<PlacedRange> ranges_of(const AdamW& op, int64_t n) {
  const auto placed = [](int64_t begin, int64_t end, double decay, uint64_t stream,
                         const ElementPlaces& places) {
    PlacedRange range;
    range.begin = begin;
    range.end = end;
    range.value = decay;
    range.stream = stream;
    range.places = places;
    return range;
  };
  if (op.ranges.empty()) return {placed(0, n, op.weight_decay, op.stream, {})};
  std::vector<PlacedRange> ranges;
  for (const AdamW::DecayRange& r : op.ranges)
    ranges.push_back(placed(r.begin, r.end, r.weight_decay, r.stream, r.places));
  return ranges;
}

// Returns the kernel with moments of type M and copies of type C.
template <class Round, class T, class M, class G, class C>
Kernel kernel_of(const AdamW& op, const KernelTypes& types) {
  const std::vector<PlacedRange> ranges = ranges_of(op, types.in[0].numel());
  const Constants constants{
      .beta1 = op.beta1, .beta2 = op.beta2, .eps = op.eps, .decoupled = op.decoupled};
  const auto blocks_of = [](const BlockRange& r) {
    return r.begin == r.end ? 0 : (r.end + kBlock - 1) / kBlock - r.begin / kBlock;
  };
  return [=, has_copy = op.has_copy, seed = op.seed](const KernelArgs& a) {
    const State<Round, T, M, G, C> state{a.out[0].as<T>(),
                                         a.out[1].as<M>(),
                                         a.out[2].as<M>(),
                                         a.in[3].as<G>(),
                                         has_copy ? a.out[3].as<C>() : nullptr,
                                         seed,
                                         0};
    const bool aligned = detail::is_aligned(state.w) && detail::is_aligned(state.m) &&
                         detail::is_aligned(state.v) && detail::is_aligned(state.g) &&
                         detail::is_aligned(state.copy);
    const auto kernel =
        aligned ? adamw<kWidth<T, M, G>, Round, T, M, G, C> : adamw<1, Round, T, M, G, C>;
    const auto launch = [&](const RangeGroup<PlacedRange>& group, int64_t first, int64_t n) {
      kernel<<<static_cast<unsigned>(n), kThreads, 0, as_stream(a.stream)>>>(
          group, first, constants, state, a.in[4].as<double>(), a.in[5].as<float>());
      TOK_CUDA_LAUNCHED();
    };
    for_range_groups(ranges, blocks_of, launch);
  };
}

// Calls make<Round, M>() for the moments of w in T.
template <class T, class Make>
Kernel by_moments(const AdamW& op, bool is_alike, Make&& make) {
  if constexpr (std::is_same_v<T, double>) {
    if (op.is_stochastic || !is_alike) fail_dtype(DType::kF64);
    return make.template operator()<Nearest, double>();
  } else {
    if (op.is_stochastic) return make.template operator()<Stochastic, __nv_bfloat16>();
    if (is_alike) return make.template operator()<Nearest, T>();
    return make.template operator()<Nearest, float>();
  }
}

// Calls make<G>() for a gradient or copy of w in T: double beside double alone.
template <class T, class Make>
Kernel by_other(DType dtype, Make&& make) {
  if constexpr (std::is_same_v<T, double>) {
    return by_float(dtype, make);
  } else {
    if (dtype == DType::kF32) return make.template operator()<float>();
    if (dtype != DType::kBF16) fail_dtype(dtype);
    return make.template operator()<__nv_bfloat16>();
  }
}

}  // namespace

Kernel prepare(const AdamW& op, const KernelTypes& types, const Setup&) {
  const bool is_alike = types.in[1].dtype == types.in[0].dtype;
  return by_float(types.in[0].dtype, [&]<class T>() {
    return by_moments<T>(op, is_alike, [&]<class Round, class M>() {
      return by_other<T>(types.in[3].dtype, [&]<class G>() -> Kernel {
        if (!op.has_copy) return kernel_of<Round, T, M, G, T>(op, types);
        return by_other<T>(types.out[3].dtype,
                           [&]<class C>() { return kernel_of<Round, T, M, G, C>(op, types); });
      });
    });
  });
}

}  // namespace tokamak::gpu
