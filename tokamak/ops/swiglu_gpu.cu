#include "tokamak/gpu/math.cuh"
#include "tokamak/ops/swiglu.h"

namespace tokamak::gpu {
namespace {

// y = g sigmoid(g) u; three accesses an element.
template <class T>
struct Gate {
  using Element = T;
  const T* gate;
  const T* up;
  T* y;

  template <int K>
  __device__ void operator()(int64_t i) const {
    T g[K];
    T u[K];
    load<K>(gate + i, g);
    load<K>(up + i, u);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const auto a = to<Accum<T>>(g[k]);
      g[k] = to<T>(a * sigmoid(a) * to<Accum<T>>(u[k]));
    }
    store<K>(y + i, g);
  }
};

// With s = sigmoid(g): dg = dy u s (1 + g (1 - s)), du = dy g s, and y = g s u as Gate makes it;
// five accesses an element, six with y. All inputs are read first: outputs may lie on any of them.
template <class T, bool kEmitsY>
struct GateGrad {
  using Element = T;
  const T* gate;
  const T* up;
  const T* dy;
  T* dgate;
  T* dup;
  T* y;

  template <int K>
  __device__ void operator()(int64_t i) const {
    using A = Accum<T>;
    T gs[K];
    T us[K];
    T ds[K];
    load<K>(gate + i, gs);
    load<K>(up + i, us);
    load<K>(dy + i, ds);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const A g = to<A>(gs[k]);
      const A u = to<A>(us[k]);
      const A d = to<A>(ds[k]);
      const A s = sigmoid(g);
      if constexpr (kEmitsY) ds[k] = to<T>(g * s * u);
      gs[k] = to<T>(d * u * s * (A{1} + g * (A{1} - s)));
      us[k] = to<T>(d * g * s);
    }
    store<K>(dgate + i, gs);
    store<K>(dup + i, us);
    if constexpr (kEmitsY) store<K>(y + i, ds);
  }
};

template <class T, bool kEmitsY>
void launch_grad(const KernelArgs& args) {
  const GateGrad<T, kEmitsY> f{args.in[0].as<T>(),  args.in[1].as<T>(),
                               args.in[2].as<T>(),  args.out[0].as<T>(),
                               args.out[1].as<T>(), kEmitsY ? args.out[2].as<T>() : nullptr};
  launch_vectors(args.out[0].numel(), args.stream, f, f.gate, f.up, f.dy, f.dgate, f.dup, f.y);
}

}  // namespace

Kernel prepare(const Swiglu&, const KernelTypes& types, const Setup&) {
  return by_float(types.out[0].dtype, []<class T>() -> Kernel {
    return [](const KernelArgs& args) {
      const Gate<T> f{args.in[0].as<T>(), args.in[1].as<T>(), args.out[0].as<T>()};
      launch_vectors(args.out[0].numel(), args.stream, f, f.gate, f.up, f.y);
    };
  });
}

Kernel prepare(const SwigluGrad& op, const KernelTypes& types, const Setup&) {
  return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
    return op.emits_y ? launch_grad<T, true> : launch_grad<T, false>;
  });
}

}  // namespace tokamak::gpu
