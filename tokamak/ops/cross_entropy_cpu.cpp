#include <cmath>

#include "tokamak/cpu/dispatch.h"
#include "tokamak/ops/cross_entropy.h"

namespace tokamak::cpu {
namespace {

template <class T>
using Stat = Accum<T>;

// N tokens, V vocabulary entries.
template <class T>
void plain_stats(int64_t V, const T* x, int32_t label, Stat<T>* stats) {
  using A = Stat<T>;
  A max = static_cast<A>(x[0]);
  for (int64_t v = 1; v < V; ++v) max = std::max(max, static_cast<A>(x[v]));
  A sum{0};
  for (int64_t v = 0; v < V; ++v) sum += std::exp(static_cast<A>(x[v]) - max);
  stats[0] = max;
  stats[1] = sum;
  stats[2] = label >= 0 && label < V ? static_cast<A>(x[label]) : A{0};
}

// dx = scale * exp(x - max) / sum, then scale less at the label.
template <class T, class A = Accum<T>>
void plain_grad(int64_t V, const T* x, int32_t label, A max, A sum, A scale, T* dx) {
  const A factor = scale / sum;
  const bool inside = label >= 0 && label < V;
  const A target = inside ? std::exp(static_cast<A>(x[label]) - max) * factor : A{0};
  for (int64_t v = 0; v < V; ++v)
    dx[v] = static_cast<T>(std::exp(static_cast<A>(x[v]) - max) * factor);
  if (inside) dx[label] = static_cast<T>(target - scale);
}

template <class T, class S>
Kernel grad_kernel(int64_t N, int64_t V, int32_t ignored) {
  using A = Accum<T>;
  return [=](const KernelArgs& a) {
    const T* x = a.in[0].as<T>();
    const int32_t* labels = a.in[1].as<int32_t>();
    const S* stats = a.in[2].as<S>();
    const auto scale = static_cast<A>(*a.in[3].as<float>());
    T* dx = a.out[0].as<T>();
    const auto stat = [stats](int64_t i) {
      return static_cast<A>(static_cast<Accum<S>>(stats[i]));
    };
    parallel_rows(N, [&](int64_t n) {
      T* row = dx + n * V;
      if (labels[n] == ignored) {
        std::fill(row, row + V, T{});
      } else {
        plain_grad(V, x + n * V, labels[n], stat(3 * n), stat(3 * n + 1), scale, row);
      }
    });
  };
}

}  // namespace

Kernel prepare(const SoftmaxStats&, const KernelTypes& types, std::string_view) {
  const int64_t N = types.in[0].dims[0];
  const int64_t V = types.in[0].dims[1];
  return by_float(types.in[0].dtype, [=]<class T>() -> Kernel {
    return [=](const KernelArgs& a) {
      const T* x = a.in[0].as<T>();
      const int32_t* labels = a.in[1].as<int32_t>();
      auto* stats = a.out[0].as<Stat<T>>();
      parallel_rows(N, [&](int64_t n) { plain_stats(V, x + n * V, labels[n], stats + 3 * n); });
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

Kernel prepare(const CrossEntropyGrad& op, const KernelTypes& types, std::string_view) {
  const int64_t N = types.in[0].dims[0];
  const int64_t V = types.in[0].dims[1];
  return by_float(types.in[0].dtype, [&]<class T>() {
    return by_float(types.in[2].dtype,
                    [&]<class S>() { return grad_kernel<T, S>(N, V, op.ignore_index); });
  });
}

}  // namespace tokamak::cpu
