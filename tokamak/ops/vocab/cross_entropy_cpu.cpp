#include <cmath>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/cpu/vec_math.h"
#include "tokamak/ops/vocab/cross_entropy.h"

namespace tokamak::cpu {
namespace {

// The specification, in the C library's functions.
struct Plain {
  template <class A>
  static A exp(A x) {
    return std::exp(x);
  }

  template <class A, class T>
  static A max(const T* x, int64_t n) {
    A most = static_cast<A>(x[0]);
    for (int64_t i = 1; i < n; ++i) most = std::max(most, static_cast<A>(x[i]));
    return most;
  }

  template <class A, class F>
  static A sum(int64_t n, F f) {
    A total{0};
    for (int64_t i = 0; i < n; ++i) total += f(i);
    return total;
  }

  template <class F>
  static void loop(int64_t n, F f) {
    for (int64_t i = 0; i < n; ++i) f(i);
  }
};

// Does the same in vector lanes.
struct Fast {
  template <class A>
  static A exp(A x) {
    return vec::exp(x);
  }

  template <class A, class T>
  static A max(const T* x, int64_t n) {
    A most = static_cast<A>(x[0]);
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < n; ++i) {
      const A value = static_cast<A>(x[i]);
      most = value > most ? value : most;
    }
    return most;
  }

  template <class A, class F>
  static A sum(int64_t n, F f) {
    return vec::sum<A>(n, f);
  }

  template <class F>
  static void loop(int64_t n, F f) {
    vec::loop(n, f);
  }
};

// N tokens, rows of `width` logits of which the first V are vocabulary entries.
struct Columns {
  int64_t width = 0;
  int64_t V = 0;

  Columns(const TensorType& logits, int64_t valid)
      : width(logits.dims[1]), V(valid > 0 ? valid : width) {}
};

template <class Way, class T>
Kernel stats_kernel(int64_t N, Columns columns, int64_t first) {
  using A = Accum<T>;
  return [=](const KernelArgs& a) {
    const T* x = a.in[0].as<T>();
    const int32_t* labels = a.in[1].as<int32_t>();
    A* stats = a.out[0].as<A>();
    const int64_t width = columns.width;
    const int64_t V = columns.V;
    parallel_rows(N, [&](int64_t n) {
      const T* row = x + n * width;
      const A max = Way::template max<A>(row, V);
      const int64_t label = labels[n] - first;
      stats[3 * n] = max;
      stats[3 * n + 1] = Way::template sum<A>(
          V, [=](int64_t v) { return Way::exp(static_cast<A>(row[v]) - max); });
      stats[3 * n + 2] = label >= 0 && label < V ? static_cast<A>(row[label]) : A{0};
    });
  };
}

// Returns the derivative of a capped logit by the uncapped one.
template <class A>
A cap_slope(A logit, A cap) {
  return A{1} - (logit / cap) * (logit / cap);
}

// dx = scale * exp(x - max) / sum, less scale at the label, and times the slope of a cap above 0.
// dx may be x.
template <class Way, class T, class A = Accum<T>>
void grad_row(int64_t V, const T* x, int64_t label, A max, A sum, A scale, A cap, T* dx) {
  const A factor = scale / sum;
  const bool inside = label >= 0 && label < V;
  const A x_label = inside ? static_cast<A>(x[label]) : A{0};
  const A target = inside ? Way::exp(x_label - max) * factor : A{0};
  const auto p = [=](int64_t v) { return Way::exp(static_cast<A>(x[v]) - max) * factor; };
  if (cap > A{0}) {
    Way::loop(
        V, [=](int64_t v) { dx[v] = static_cast<T>(p(v) * cap_slope(static_cast<A>(x[v]), cap)); });
    if (inside) dx[label] = static_cast<T>((target - scale) * cap_slope(x_label, cap));
    return;
  }
  Way::loop(V, [=](int64_t v) { dx[v] = static_cast<T>(p(v)); });
  if (inside) dx[label] = static_cast<T>(target - scale);
}

template <class Way, class T, class S>
Kernel grad_kernel(int64_t N, Columns columns, const CrossEntropyGrad& op) {
  using A = Accum<T>;
  const int32_t ignored = op.ignore_index;
  const int64_t first = op.first_column;
  const A cap = static_cast<A>(op.cap);
  return [=](const KernelArgs& a) {
    const T* x = a.in[0].as<T>();
    const int32_t* labels = a.in[1].as<int32_t>();
    const S* stats = a.in[2].as<S>();
    const auto scale = static_cast<A>(*a.in[3].as<float>());
    T* dx = a.out[0].as<T>();
    const int64_t width = columns.width;
    const int64_t V = columns.V;
    const auto stat = [stats](int64_t i) {
      return static_cast<A>(static_cast<Accum<S>>(stats[i]));
    };
    parallel_rows(N, [&](int64_t n) {
      T* row = dx + n * width;
      if (labels[n] == ignored) {
        std::fill(row, row + width, T{});
      } else {
        grad_row<Way>(V, x + n * width, labels[n] - first, stat(3 * n), stat(3 * n + 1), scale, cap,
                      row);
        std::fill(row + V, row + width, T{});
      }
    });
  };
}

}  // namespace

Kernel prepare(const SoftmaxStats& op, const KernelTypes& types, std::string_view variant) {
  const int64_t N = types.in[0].dims[0];
  const Columns columns(types.in[0], op.valid_columns);
  const bool fast = variant != kCpuReference.name;
  return by_float(types.in[0].dtype, [&]<class T>() {
    if (fast) return stats_kernel<Fast, T>(N, columns, op.first_column);
    return stats_kernel<Plain, T>(N, columns, op.first_column);
  });
}

Kernel prepare(const CombineStats&, const KernelTypes& types, std::string_view) {
  const int64_t R = types.in[0].dims[0];
  const int64_t N = types.in[0].dims[1];
  return by_float(types.in[0].dtype, [=]<class T>() -> Kernel {
    return [=](const KernelArgs& a) {
      using A = Accum<T>;
      const T* parts = a.in[0].as<T>();
      T* stats = a.out[0].as<T>();
      parallel_ranges(N, 1024, [=](int64_t begin, int64_t end, int) {
        for (int64_t n = begin; n < end; ++n) {
          const auto part = [=](int64_t r, int64_t i) {
            return static_cast<A>(parts[(r * N + n) * 3 + i]);
          };
          A max = part(0, 0);
          for (int64_t r = 1; r < R; ++r) max = std::max(max, part(r, 0));
          A sum{0};
          A target{0};
          for (int64_t r = 0; r < R; ++r) {
            sum += part(r, 1) * std::exp(part(r, 0) - max);
            target += part(r, 2);
          }
          stats[3 * n] = static_cast<T>(max);
          stats[3 * n + 1] = static_cast<T>(sum);
          stats[3 * n + 2] = static_cast<T>(target);
        }
      });
    };
  });
}

Kernel prepare(const Nll& op, const KernelTypes& types, std::string_view) {
  const int64_t N = types.in[0].dims[0];
  const int32_t ignored = op.ignore_index;
  return by_float(types.in[0].dtype, [=]<class T>() -> Kernel {
    return [=](const KernelArgs& a) {
      const T* stats = a.in[0].as<T>();
      const int32_t* labels = a.in[1].as<int32_t>();
      double total = 0.0;
      for (int64_t n = 0; n < N; ++n, stats += 3) {
        if (labels[n] == ignored) continue;
        const auto stat = [&](int i) {
          return static_cast<double>(static_cast<Accum<T>>(stats[i]));
        };
        total += (stat(0) - stat(2)) + std::log(stat(1));
      }
      double* loss = a.out[0].as<double>();
      total *= static_cast<double>(*a.in[2].as<float>());
      *loss = a.accumulate[0] ? *loss + total : total;
    };
  });
}

Kernel prepare(const CrossEntropyGrad& op, const KernelTypes& types, std::string_view variant) {
  const int64_t N = types.in[0].dims[0];
  const Columns columns(types.in[0], op.valid_columns);
  const bool fast = variant != kCpuReference.name;
  return by_float(types.in[0].dtype, [&]<class T>() {
    return by_float(types.in[2].dtype, [&]<class S>() {
      if (fast) return grad_kernel<Fast, T, S>(N, columns, op);
      return grad_kernel<Plain, T, S>(N, columns, op);
    });
  });
}

}  // namespace tokamak::cpu
