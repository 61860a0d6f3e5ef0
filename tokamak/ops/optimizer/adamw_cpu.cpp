#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>
#include <type_traits>
#include <vector>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/cpu/philox.h"
#include "tokamak/cpu/vec_math.h"
#include "tokamak/ops/optimizer/adamw.h"

namespace tokamak::cpu {
namespace {

// The scalars of one step, rounded once from double as torch rounds them.
template <class A>
struct Coefficients {
  A keep, decay, rate1, beta2, rate2, root2, eps, step, factor;

  Coefficients(const AdamW& op, double weight_decay, const double* scalars, float clip)
      : keep(static_cast<A>(op.decoupled ? 1.0 - scalars[0] * weight_decay : 1.0)),
        decay(static_cast<A>(op.decoupled ? 0.0 : weight_decay)),
        rate1(static_cast<A>(1.0 - op.beta1)),
        beta2(static_cast<A>(op.beta2)),
        rate2(static_cast<A>(1.0 - op.beta2)),
        root2(static_cast<A>(std::sqrt(scalars[2]))),
        eps(static_cast<A>(op.eps)),
        step(static_cast<A>(-(scalars[0] / scalars[1]))),
        factor(static_cast<A>(clip)) {}
};

// Stores x by nearest rounding.
struct Nearest {
  template <class M, class A>
  void operator()(M& m, A x, uint32_t) const {
    m = static_cast<M>(static_cast<Accum<M>>(x));
  }
};

// Stores x by 16 random bits.
struct Stochastic {
  template <class A>
  void operator()(BF16& m, A x, uint32_t random) const {
    m.bits = round_stochastically(std::bit_cast<uint32_t>(static_cast<float>(x)), random);
  }
};

// Reads and writes 28 bytes (fp32), 20 bytes (bf16 moments of fp32) or 16 bytes (bf16 with fp32
// gradients) per element.
template <class Round, class T, class M, class G, class A = Accum<T>>
void update(const Coefficients<A> c, T* w, M* m, M* v, const G* gradient, const uint32_t* words,
            int64_t n) {
  const bool near = c.rate1 < A{0.5};
  constexpr bool kRandom = std::is_same_v<Round, Stochastic>;
  vec::loop(n, [=](int64_t i) {
    const A w0 = static_cast<A>(w[i]);
    const A m0 = static_cast<A>(static_cast<Accum<M>>(m[i]));
    const A g = static_cast<A>(static_cast<Accum<G>>(gradient[i])) * c.factor + c.decay * w0;
    const A m1 = near ? m0 + c.rate1 * (g - m0) : g - (g - m0) * (A{1} - c.rate1);
    const A v1 = static_cast<A>(static_cast<Accum<M>>(v[i])) * c.beta2 + c.rate2 * g * g;
    w[i] = static_cast<T>(w0 * c.keep + c.step * m1 / (std::sqrt(v1) / c.root2 + c.eps));
    const uint32_t word = kRandom ? words[i] : 0;
    Round{}(m[i], m1, word & 0xFFFFU);
    Round{}(v[i], v1, word >> 16U);
  });
}

// Makes the words of elements `first`, `first` + 1, ... of a range.
void fill_words(uint64_t seed, int64_t step, const AdamW::DecayRange& range, int64_t first,
                std::span<uint32_t> words) {
  PhiloxBlock block;
  for (size_t done = 0; done < words.size();) {
    const int64_t i = first + static_cast<int64_t>(done);
    const int64_t element = range.places(i);
    const auto before = static_cast<size_t>(element % 4);
    const size_t n = std::min(
        {words.size() - done, static_cast<size_t>(range.places.run(i)), block.size() - before});
    philox_block(seed, rounding_counter(step, element), range.stream, block);
    std::copy_n(block.begin() + static_cast<int64_t>(before), n,
                words.begin() + static_cast<int64_t>(done));
    done += n;
  }
}

// copy = w, rounded to nearest even.
template <class T, class C>
void round_to(const T* w, C* copy, int64_t n) {
  vec::loop(n, [=](int64_t i) {
    copy[i] = static_cast<C>(static_cast<Accum<C>>(static_cast<Accum<T>>(w[i])));
  });
}

// So few elements that their new w is still in the caches when it is copied.
constexpr int64_t kBlock = 8192;

// Returns the kernel with moments of type M and copies of type C.
template <class Round, class T, class M, class G, class C>
Kernel kernel_of(const AdamW& op, const KernelTypes& types) {
  std::vector<AdamW::DecayRange> ranges = op.ranges;
  if (ranges.empty()) {
    ranges = {{.end = types.in[0].numel(), .weight_decay = op.weight_decay, .stream = op.stream}};
  }
  return [op, ranges](const KernelArgs& a) {
    const float factor = *a.in[5].as<float>();
    if (!std::isfinite(factor)) return;
    const auto* scalars = a.in[4].as<double>();
    for (const AdamW::DecayRange& r : ranges) {
      const Coefficients<Accum<T>> c(op, r.weight_decay, scalars, factor);
      parallel_ranges(r.end - r.begin, kBlock, [&](int64_t begin, int64_t end, int) {
        constexpr bool kRandom = std::is_same_v<Round, Stochastic>;
        std::array<uint32_t, kRandom ? kBlock : 1> words{};
        for (int64_t at = r.begin + begin; at < r.begin + end; at += kBlock) {
          const int64_t n = std::min(kBlock, r.begin + end - at);
          if constexpr (kRandom) {
            fill_words(op.seed, static_cast<int64_t>(scalars[3]), r, at - r.begin,
                       std::span(words).first(static_cast<size_t>(n)));
          }
          update<Round>(c, a.out[0].as<T>() + at, a.out[1].as<M>() + at, a.out[2].as<M>() + at,
                        a.in[3].as<G>() + at, words.data(), n);
          if (op.has_copy) round_to(a.out[0].as<T>() + at, a.out[3].as<C>() + at, n);
        }
      });
    }
  };
}

// Calls make<Round, M>() for the moments of w in T.
template <class T, class Make>
Kernel by_moments(const AdamW& op, DType moments, Make&& make) {
  if (op.is_stochastic) return make.template operator()<Stochastic, BF16>();
  if (moments == kDTypeOf<T>) return make.template operator()<Nearest, T>();
  return make.template operator()<Nearest, float>();
}

}  // namespace

Kernel prepare(const AdamW& op, const KernelTypes& types, std::string_view) {
  return by_float(types.in[0].dtype, [&]<class T>() {
    return by_moments<T>(op, types.in[1].dtype, [&]<class Round, class M>() {
      return by_float(types.in[3].dtype, [&]<class G>() -> Kernel {
        if (!op.has_copy) return kernel_of<Round, T, M, G, T>(op, types);
        return by_float(types.out[3].dtype,
                        [&]<class C>() { return kernel_of<Round, T, M, G, C>(op, types); });
      });
    });
  });
}

}  // namespace tokamak::cpu
