#include <cmath>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/cpu/row_sums.h"
#include "tokamak/cpu/vec_math.h"
#include "tokamak/ops/rms_norm.h"

namespace tokamak::cpu {
namespace {

template <class T, class A = Accum<T>>
A reciprocal_rms(const T* x, int64_t D, A eps) {
  const A sum = vec::sum<A>(D, [=](int64_t d) {
    const A v = static_cast<A>(x[d]);
    return v * v;
  });
  return A{1} / std::sqrt(sum / static_cast<A>(D) + eps);
}

// With h = x r: dx = r (w dy - h mean(w dy h)), dw += dy h.
template <class T, class A = Accum<T>>
void grad_row(const T* x, const T* w, const T* dy, T* dx, A* dw, int64_t D, A eps) {
  A squares{0};
  A products{0};
#pragma omp simd reduction(+ : squares, products)
  for (int64_t d = 0; d < D; ++d) {
    const A v = static_cast<A>(x[d]);
    squares += v * v;
    products += static_cast<A>(w[d]) * static_cast<A>(dy[d]) * v;
  }
  const A r = A{1} / std::sqrt(squares / static_cast<A>(D) + eps);
  const A scale = products * r * r / static_cast<A>(D);
  vec::loop(D, [=](int64_t d) {
    const A v = static_cast<A>(x[d]);
    const A g = static_cast<A>(dy[d]);
    dw[d] += g * v * r;
    dx[d] = static_cast<T>(r * (static_cast<A>(w[d]) * g - v * scale));
  });
}

}  // namespace

// N rows, D embed.

Kernel prepare(const RmsNorm& op, const KernelTypes& types, std::string_view) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [=, eps = op.eps]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      using A = Accum<T>;
      const T* w = args.in[1].as<T>();
      parallel_rows(N, [&, eps](int64_t n) {
        const T* x = args.in[0].as<T>() + n * D;
        T* y = args.out[0].as<T>() + n * D;
        const A r = reciprocal_rms(x, D, static_cast<A>(eps));
        vec::loop(D, [=](int64_t d) {
          const T h = static_cast<T>(static_cast<A>(x[d]) * r);
          y[d] = static_cast<T>(static_cast<A>(w[d]) * static_cast<A>(h));
        });
      });
    };
  });
}

Kernel prepare(const RmsNormGrad& op, const KernelTypes& types, std::string_view) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [=, eps = op.eps]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      using A = Accum<T>;
      const T* x = args.in[0].as<T>();
      const T* w = args.in[1].as<T>();
      const T* dy = args.in[2].as<T>();
      T* dx = args.out[0].as<T>();
      sum_rows<1, A>(N, D, args.workspace, [=](int64_t n, A* dw) {
        grad_row(x + n * D, w, dy + n * D, dx + n * D, dw, D, static_cast<A>(eps));
      });
      add_blocks<1>(N, D, args.workspace, 0, args.out[1].as<A>(), args.accumulate[1]);
    };
  });
}

}  // namespace tokamak::cpu
