#include <cmath>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/cpu/row_sums.h"
#include "tokamak/cpu/vec_math.h"
#include "tokamak/ops/norm/rms_norm.h"

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

template <class T, class A = Accum<T>>
void norm_row(const T* x, const T* w, T* y, int64_t D, A eps) {
  const A r = reciprocal_rms(x, D, eps);
  vec::loop(D, [=](int64_t d) {
    const T h = static_cast<T>(static_cast<A>(x[d]) * r);
    y[d] = static_cast<T>(static_cast<A>(w[d]) * static_cast<A>(h));
  });
}

// With h = x r: dx (+)= r (w dy - h mean(w dy h)), dw += dy h.
template <class T, bool kAdds, class A = Accum<T>>
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
    A sum = r * (static_cast<A>(w[d]) * g - v * scale);
    if constexpr (kAdds) sum += static_cast<A>(dx[d]);
    dx[d] = static_cast<T>(sum);
  });
}

}  // namespace

// N rows, D embed.

Kernel prepare(const RmsNorm& op, const KernelTypes& types, std::string_view) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [=, eps = op.eps]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      const T* x = args.in[0].as<T>();
      const T* w = args.in[1].as<T>();
      T* y = args.out[0].as<T>();
      parallel_rows(
          N, [=](int64_t n) { norm_row(x + n * D, w, y + n * D, D, static_cast<Accum<T>>(eps)); });
    };
  });
}

Kernel prepare(const AddRmsNorm& op, const KernelTypes& types, std::string_view) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [=, eps = op.eps]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      using A = Accum<T>;
      const T* x = args.in[0].as<T>();
      const T* branch = args.in[1].as<T>();
      const T* w = args.in[2].as<T>();
      T* sum = args.out[0].as<T>();
      T* y = args.out[1].as<T>();
      parallel_rows(N, [=](int64_t n) {
        vec::loop(D, [=](int64_t d) {
          const int64_t i = n * D + d;
          sum[i] = static_cast<T>(static_cast<A>(x[i]) + static_cast<A>(branch[i]));
        });
        norm_row(sum + n * D, w, y + n * D, D, static_cast<A>(eps));
      });
    };
  });
}

Kernel prepare(const RmsNormGrad& op, const KernelTypes& types, std::string_view) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  const bool emits_y = op.emits_y;
  return by_float(types.out[0].dtype, [=, eps = op.eps]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      using A = Accum<T>;
      const T* x = args.in[0].as<T>();
      const T* w = args.in[1].as<T>();
      const T* dy = args.in[2].as<T>();
      T* dx = args.out[0].as<T>();
      T* y = emits_y ? args.out[2].as<T>() : nullptr;
      const auto grad = args.accumulate[0] ? grad_row<T, true> : grad_row<T, false>;
      sum_rows<1, A>(N, D, args.workspace, [=](int64_t n, A* dw) {
        const auto e = static_cast<A>(eps);
        if (y != nullptr) norm_row(x + n * D, w, y + n * D, D, e);
        grad(x + n * D, w, dy + n * D, dx + n * D, dw, D, e);
      });
      add_blocks<1>(N, D, args.workspace, 0, args.out[1].as<A>(), args.accumulate[1]);
    };
  });
}

}  // namespace tokamak::cpu
