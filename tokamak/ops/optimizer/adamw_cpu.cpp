#include <algorithm>
#include <cmath>
#include <vector>

#include "tokamak/cpu/dispatch.h"
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

// Reads and writes 28 bytes (fp32) or 16 bytes (bf16 with fp32 gradients) per element.
template <class T, class G, class A = Accum<T>>
void update(const Coefficients<A> c, T* w, T* m, T* v, const G* gradient, int64_t n) {
  const bool near = c.rate1 < A{0.5};
  vec::loop(n, [=](int64_t i) {
    const A w0 = static_cast<A>(w[i]);
    const A m0 = static_cast<A>(m[i]);
    const A g = static_cast<A>(static_cast<Accum<G>>(gradient[i])) * c.factor + c.decay * w0;
    const A m1 = near ? m0 + c.rate1 * (g - m0) : g - (g - m0) * (A{1} - c.rate1);
    const A v1 = static_cast<A>(v[i]) * c.beta2 + c.rate2 * g * g;
    w[i] = static_cast<T>(w0 * c.keep + c.step * m1 / (std::sqrt(v1) / c.root2 + c.eps));
    m[i] = static_cast<T>(m1);
    v[i] = static_cast<T>(v1);
  });
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

// Returns the kernel with copies of type C.
template <class T, class G, class C>
Kernel kernel_of(const AdamW& op, const KernelTypes& types) {
  std::vector<AdamW::DecayRange> ranges = op.ranges;
  if (ranges.empty()) ranges = {{.end = types.in[0].numel(), .weight_decay = op.weight_decay}};
  return [op, ranges](const KernelArgs& a) {
    const float factor = *a.in[5].as<float>();
    if (!std::isfinite(factor)) return;
    for (const AdamW::DecayRange& r : ranges) {
      const Coefficients<Accum<T>> c(op, r.weight_decay, a.in[4].as<double>(), factor);
      parallel_ranges(r.end - r.begin, kBlock, [&](int64_t begin, int64_t end, int) {
        for (int64_t at = r.begin + begin; at < r.begin + end; at += kBlock) {
          const int64_t n = std::min(kBlock, r.begin + end - at);
          update(c, a.out[0].as<T>() + at, a.out[1].as<T>() + at, a.out[2].as<T>() + at,
                 a.in[3].as<G>() + at, n);
          if (op.has_copy) round_to(a.out[0].as<T>() + at, a.out[3].as<C>() + at, n);
        }
      });
    }
  };
}

}  // namespace

Kernel prepare(const AdamW& op, const KernelTypes& types, std::string_view) {
  return by_float(types.in[0].dtype, [&]<class T>() {
    return by_float(types.in[3].dtype, [&]<class G>() -> Kernel {
      if (!op.has_copy) return kernel_of<T, G, T>(op, types);
      return by_float(types.out[3].dtype, [&]<class C>() { return kernel_of<T, G, C>(op, types); });
    });
  });
}

}  // namespace tokamak::cpu
