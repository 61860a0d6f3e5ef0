#include <cmath>
#include <cstring>
#include <limits>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/ops/attention/context_attention.h"

namespace tokamak::cpu {
namespace {

// The weights of the two parts of a softmax in their sum.
template <class A>
struct Weights {
  A lse, first, second;

  Weights(A a, A b) {
    const A max = std::max(a, b);
    if (max == -std::numeric_limits<A>::infinity()) {
      lse = max;
      first = A{1};
      second = A{0};
      return;
    }
    lse = max + std::log(std::exp(a - max) + std::exp(b - max));
    first = std::exp(a - lse);
    second = std::exp(b - lse);
  }
};

}  // namespace

// B batch, S queries, P of them in the part, H heads, D head dim.

Kernel prepare(const MergeAttention& op, const KernelTypes& types, std::string_view) {
  const Dims& x = types.in[0].dims;
  const int64_t B = x[0];
  const int64_t S = x[1];
  const int64_t H = x[2];
  const int64_t D = x[3];
  const int64_t P = types.in[2].dims[1];
  const int64_t first = op.first;
  const auto merge = [=]<class T, class A>(const KernelArgs& a) {
    for (size_t k = 0; k < 2; ++k) {
      if (a.in[k].data != a.out[k].data)
        std::memcpy(a.out[k].data, a.in[k].data, a.in[k].type.bytes());
    }
    const T* part = a.in[2].as<T>();
    const A* part_lse = a.in[3].as<A>();
    A* o = a.out[0].as<A>();
    A* lse = a.out[1].as<A>();
    parallel_rows(B * P, [=](int64_t row) {
      const int64_t b = row / P;
      const int64_t p = row % P;
      for (int64_t h = 0; h < H; ++h) {
        A& total = lse[(b * H + h) * S + first + p];
        const Weights<A> w(total, part_lse[(b * H + h) * P + p]);
        total = w.lse;
        A* to = o + ((b * S + first + p) * H + h) * D;
        const T* from = part + (row * H + h) * D;
#pragma omp simd
        for (int64_t d = 0; d < D; ++d)
          to[d] = w.first * to[d] + w.second * static_cast<A>(static_cast<Accum<T>>(from[d]));
      }
    });
  };
  return by_float(types.in[2].dtype, [&]<class T>() -> Kernel {
    if (types.in[0].dtype == DType::kF64)
      return [merge](const KernelArgs& a) { merge.template operator()<T, double>(a); };
    return [merge](const KernelArgs& a) { merge.template operator()<T, float>(a); };
  });
}

}  // namespace tokamak::cpu
