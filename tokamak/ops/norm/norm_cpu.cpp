#include <cmath>
#include <type_traits>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/cpu/row_sums.h"
#include "tokamak/cpu/vec_math.h"
#include "tokamak/ops/norm/norm.h"

namespace tokamak::cpu {
namespace {

// N rows, D embed.

template <class A>
A reciprocal_root(A squares, int64_t D, A eps) {
  return A{1} / std::sqrt(squares / static_cast<A>(D) + eps);
}

template <class T, class A = Accum<T>>
A mean_of(const T* x, int64_t D) {
  return vec::sum<A>(D, [=](int64_t d) { return static_cast<A>(x[d]); }) / static_cast<A>(D);
}

// The parameters that all rows of a norm share.
template <class T>
struct Parameters {
  const T* w;
  const T* b;  // for LayerRow::norm only
  int64_t D;
  Accum<T> eps;
};

template <class T, bool kZeroCentered>
struct RmsRow {
  using A = Accum<T>;
  static constexpr int kParameters = 1;

  static A weight(T w) { return kZeroCentered ? A{1} + static_cast<A>(w) : static_cast<A>(w); }

  static void norm(const Parameters<T>& p, const T* x, T* y) {
    const A squares = vec::sum<A>(p.D, [=](int64_t d) {
      const A v = static_cast<A>(x[d]);
      return v * v;
    });
    const A r = reciprocal_root(squares, p.D, p.eps);
    vec::loop(p.D, [=, w = p.w](int64_t d) {
      const A h = static_cast<A>(x[d]) * r;
      y[d] = static_cast<T>(weight(w[d]) * (kZeroCentered ? h : static_cast<A>(static_cast<T>(h))));
    });
  }

  // With h = x r: dx (+)= r (w dy - h mean(w dy h)), dw += dy h; w or 1 + w.
  template <bool kAdds>
  static void grad(const Parameters<T>& p, const T* x, const T* dy, T* dx, A* dw) {
    const int64_t D = p.D;
    const T* w = p.w;
    A squares{0};
    A products{0};
#pragma omp simd reduction(+ : squares, products)
    for (int64_t d = 0; d < D; ++d) {
      const A v = static_cast<A>(x[d]);
      squares += v * v;
      products += weight(w[d]) * static_cast<A>(dy[d]) * v;
    }
    const A r = reciprocal_root(squares, D, p.eps);
    const A scale = products * r * r / static_cast<A>(D);
    vec::loop(D, [=](int64_t d) {
      const A v = static_cast<A>(x[d]);
      const A g = static_cast<A>(dy[d]);
      dw[d] += g * v * r;
      A sum = r * (weight(w[d]) * g - v * scale);
      if constexpr (kAdds) sum += static_cast<A>(dx[d]);
      dx[d] = static_cast<T>(sum);
    });
  }
};

template <class T>
struct LayerRow {
  using A = Accum<T>;
  static constexpr int kParameters = 2;

  static void norm(const Parameters<T>& p, const T* x, T* y) {
    const A mean = mean_of(x, p.D);
    const A squares = vec::sum<A>(p.D, [=](int64_t d) {
      const A v = static_cast<A>(x[d]) - mean;
      return v * v;
    });
    const A r = reciprocal_root(squares, p.D, p.eps);
    vec::loop(p.D, [=, w = p.w, b = p.b](int64_t d) {
      const A h = (static_cast<A>(x[d]) - mean) * r;
      y[d] = static_cast<T>(h * static_cast<A>(w[d]) + static_cast<A>(b[d]));
    });
  }

  // With h = (x - mean) r and g = w dy: dx (+)= r (g - mean(g) - h mean(g h)), dw += dy h, db +=
  // dy.
  template <bool kAdds>
  static void grad(const Parameters<T>& p, const T* x, const T* dy, T* dx, A* dw) {
    const int64_t D = p.D;
    const T* w = p.w;
    A* db = dw + D;
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
    const A r = reciprocal_root(squares, D, p.eps);
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
};

// Calls `make` with the kind of row that `op` norms.
template <class T, NormKind kKind, template <NormKind> class Op, class Make>
Kernel by_row(const Op<kKind>& op, Make&& make) {
  if constexpr (kKind == NormKind::kLayer) {
    return make.template operator()<LayerRow<T>>();
  } else {
    return op.zero_centered ? make.template operator()<RmsRow<T, true>>()
                            : make.template operator()<RmsRow<T, false>>();
  }
}

// Returns a norm's parameters, which are the inputs from index `first` on.
template <class T>
Parameters<T> parameters_from(const KernelArgs& args, size_t first, int64_t D, float eps) {
  return {.w = args.in[first].as<T>(),
          .b = args.has(first + 1) ? args.in[first + 1].as<T>() : nullptr,
          .D = D,
          .eps = static_cast<Accum<T>>(eps)};
}

template <NormKind kKind>
Kernel norm_kernel(const Norm<kKind>& op, const KernelTypes& types) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [&, eps = op.eps]<class T>() -> Kernel {
    return by_row<T>(op, [&]<class Row>() -> Kernel {
      return [=](const KernelArgs& args) {
        const auto p = parameters_from<T>(args, 1, D, eps);
        const T* x = args.in[0].as<T>();
        T* y = args.out[0].as<T>();
        parallel_rows(N, [=](int64_t n) { Row::norm(p, x + n * D, y + n * D); });
      };
    });
  });
}

template <NormKind kKind>
Kernel add_norm_kernel(const AddNorm<kKind>& op, const KernelTypes& types) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [&, eps = op.eps]<class T>() -> Kernel {
    return by_row<T>(op, [&]<class Row>() -> Kernel {
      return [=](const KernelArgs& args) {
        using A = Accum<T>;
        const auto p = parameters_from<T>(args, 2, D, eps);
        const T* x = args.in[0].as<T>();
        const T* branch = args.in[1].as<T>();
        T* sum = args.out[0].as<T>();
        T* y = args.out[1].as<T>();
        parallel_rows(N, [=](int64_t n) {
          vec::loop(D, [=](int64_t d) {
            const int64_t i = n * D + d;
            sum[i] = static_cast<T>(static_cast<A>(x[i]) + static_cast<A>(branch[i]));
          });
          Row::norm(p, sum + n * D, y + n * D);
        });
      };
    });
  });
}

template <class T, class Row>
void row_gradients(const KernelArgs& args, int64_t N, int64_t D, float eps, bool emits_y) {
  using A = Accum<T>;
  const Parameters<T> p{.w = args.in[1].as<T>(), .b = nullptr, .D = D, .eps = static_cast<A>(eps)};
  const T* x = args.in[0].as<T>();
  const T* dy = args.in[2].as<T>();
  T* dx = args.out[0].as<T>();
  T* y = emits_y ? args.out.back().as<T>() : nullptr;
  const auto grad = args.accumulate[0] ? Row::template grad<true> : Row::template grad<false>;
  sum_rows<Row::kParameters, A>(N, D, args.workspace, [=](int64_t n, A* sums) {
    if (y != nullptr) Row::norm(p, x + n * D, y + n * D);
    grad(p, x + n * D, dy + n * D, dx + n * D, sums);
  });
  for (int k = 0; k < Row::kParameters; ++k) {
    add_blocks<Row::kParameters>(N, D, args.workspace, k, args.out[1 + k].as<A>(),
                                 args.accumulate[1 + k]);
  }
}

template <NormKind kKind>
Kernel grad_kernel(const NormGrad<kKind>& op, const KernelTypes& types) {
  const int64_t N = rows_of(types.in[0]);
  const int64_t D = types.in[0].dims.back();
  return by_float(types.out[0].dtype, [&, eps = op.eps, emits_y = op.emits_y]<class T>() -> Kernel {
    return by_row<T>(op, [&]<class Row>() -> Kernel {
      return [=](const KernelArgs& args) { row_gradients<T, Row>(args, N, D, eps, emits_y); };
    });
  });
}

}  // namespace

Kernel prepare(const RmsNorm& op, const KernelTypes& types, std::string_view) {
  return norm_kernel(op, types);
}

Kernel prepare(const AddRmsNorm& op, const KernelTypes& types, std::string_view) {
  return add_norm_kernel(op, types);
}

Kernel prepare(const RmsNormGrad& op, const KernelTypes& types, std::string_view) {
  return grad_kernel(op, types);
}

Kernel prepare(const LayerNorm& op, const KernelTypes& types, std::string_view) {
  return norm_kernel(op, types);
}

Kernel prepare(const AddLayerNorm& op, const KernelTypes& types, std::string_view) {
  return add_norm_kernel(op, types);
}

Kernel prepare(const LayerNormGrad& op, const KernelTypes& types, std::string_view) {
  return grad_kernel(op, types);
}

}  // namespace tokamak::cpu
