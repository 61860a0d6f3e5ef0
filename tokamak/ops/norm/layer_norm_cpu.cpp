#include <cmath>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/cpu/row_sums.h"
#include "tokamak/cpu/vec_math.h"
#include "tokamak/ops/norm/layer_norm.h"

namespace tokamak::cpu {
namespace {

template <class T, class A = Accum<T>>
A mean_of(const T* x, int64_t D) {
  return vec::sum<A>(D, [=](int64_t d) { return static_cast<A>(x[d]); }) / static_cast<A>(D);
}

template <class T, class A = Accum<T>>
A squares_about(const T* x, int64_t D, A mean) {
  return vec::sum<A>(D, [=](int64_t d) {
    const A v = static_cast<A>(x[d]) - mean;
    return v * v;
  });
}

template <class A>
A reciprocal_deviation(A squares, int64_t D, A eps) {
  return A{1} / std::sqrt(squares / static_cast<A>(D) + eps);
}

// With h = (x - mean) r and g = w dy: dx (+)= r (g - mean(g) - h mean(g h)), dw += dy h, db += dy.
template <class T, bool kAdds, class A = Accum<T>>
void grad_row(const T* x, const T* w, const T* dy, T* dx, A* dw, A* db, int64_t D, A eps) {
  const A mean = mean_of(x, D);
  A squares{0};
  A sum_g{0};
  A sum_gv{0};
#pragma omp simd reduction(+ : squares, sum_g, sum_gv)
  for (int64_t d = 0; d < D; ++d) {
    const A v = static_cast<A>(x[d]) - mean;
    const A g = static_cast<A>(w[d]) * static_cast<A>(dy[d]);
    squares += v * v;
    sum_g += g;
    sum_gv += g * v;
  }
  const A r = reciprocal_deviation(squares, D, eps);
  const A mean_g = sum_g / static_cast<A>(D);
  const A mean_gh = sum_gv * r / static_cast<A>(D);
  vec::loop(D, [=](int64_t d) {
    const A h = (static_cast<A>(x[d]) - mean) * r;
    const A g = static_cast<A>(dy[d]);
    dw[d] += g * h;
    db[d] += g;
    A sum = r * (static_cast<A>(w[d]) * g - mean_g - h * mean_gh);
    if constexpr (kAdds) sum += static_cast<A>(dx[d]);
    dx[d] = static_cast<T>(sum);
  });
}

template <class T, class A = Accum<T>>
void norm_row(const T* x, const T* w, const T* b, T* y, int64_t D, A eps) {
  const A mean = mean_of(x, D);
  const A r = reciprocal_deviation(squares_about(x, D, mean), D, eps);
  vec::loop(D, [=](int64_t d) {
    const A h = (static_cast<A>(x[d]) - mean) * r;
    y[d] = static_cast<T>(h * static_cast<A>(w[d]) + static_cast<A>(b[d]));
  });
}

}  // namespace

// N rows, D embed.

Kernel prepare(const LayerNorm& op, const KernelTypes& types, std::string_view) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [=, eps = op.eps]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      const T* w = args.in[1].as<T>();
      const T* b = args.in[2].as<T>();
      parallel_rows(N, [&, eps](int64_t n) {
        norm_row(args.in[0].as<T>() + n * D, w, b, args.out[0].as<T>() + n * D, D,
                 static_cast<Accum<T>>(eps));
      });
    };
  });
}

Kernel prepare(const AddLayerNorm& op, const KernelTypes& types, std::string_view) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [=, eps = op.eps]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      using A = Accum<T>;
      const T* w = args.in[2].as<T>();
      const T* b = args.in[3].as<T>();
      parallel_rows(N, [&, eps](int64_t n) {
        const T* x = args.in[0].as<T>() + n * D;
        const T* branch = args.in[1].as<T>() + n * D;
        T* sum = args.out[0].as<T>() + n * D;
        vec::loop(D, [=](int64_t d) {
          sum[d] = static_cast<T>(static_cast<A>(x[d]) + static_cast<A>(branch[d]));
        });
        norm_row(sum, w, b, args.out[1].as<T>() + n * D, D, static_cast<A>(eps));
      });
    };
  });
}

Kernel prepare(const LayerNormGrad& op, const KernelTypes& types, std::string_view) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [=, eps = op.eps]<class T>() -> Kernel {
    return [=](const KernelArgs& args) {
      using A = Accum<T>;
      const T* x = args.in[0].as<T>();
      const T* w = args.in[1].as<T>();
      const T* dy = args.in[2].as<T>();
      T* dx = args.out[0].as<T>();
      const auto grad = args.accumulate[0] ? grad_row<T, true> : grad_row<T, false>;
      sum_rows<2, A>(N, D, args.workspace, [=](int64_t n, A* sums) {
        grad(x + n * D, w, dy + n * D, dx + n * D, sums, sums + D, D, static_cast<A>(eps));
      });
      add_blocks<2>(N, D, args.workspace, 0, args.out[1].as<A>(), args.accumulate[1]);
      add_blocks<2>(N, D, args.workspace, 1, args.out[2].as<A>(), args.accumulate[2]);
    };
  });
}

}  // namespace tokamak::cpu
