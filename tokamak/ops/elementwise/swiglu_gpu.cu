#include "tokamak/gpu/divisor.cuh"
#include "tokamak/gpu/math.cuh"
#include "tokamak/ops/elementwise/swiglu.h"

namespace tokamak::gpu {
namespace {

// The offset of y's element i in gate, up and their gradients. Packed rows hold twice y's columns:
// row r begins r F later there.
struct Apart {
  __device__ int64_t operator()(int64_t i) const { return i; }
};

struct Packed {
  Divisor columns;

  __device__ int64_t operator()(int64_t i) const {
    return i + columns.quotient(i) * columns.value();
  }
};

// y = g sigmoid(g) u; three accesses per element.
template <class T, class Place>
struct Gate {
  using Element = T;
  Place place;
  const T* gate;
  const T* up;
  T* y;

  template <int K>
  __device__ void operator()(int64_t i) const {
    const int64_t at = place(i);
    T g[K];
    T u[K];
    load<K>(gate + at, g);
    load<K>(up + at, u);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const auto a = to<Accum<T>>(g[k]);
      g[k] = to<T>(a * sigmoid(a) * to<Accum<T>>(u[k]));
    }
    store<K>(y + i, g);
  }
};

// With s = sigmoid(g): dg = dy u s (1 + g (1 - s)), du = dy g s, and y = g s u as Gate makes it;
// five accesses per element, six with y. All inputs are read first: outputs may lie on any of them.
template <class T, bool kEmitsY, class Place>
struct GateGrad {
  using Element = T;
  Place place;
  const T* gate;
  const T* up;
  const T* dy;
  T* dgate;
  T* dup;
  T* y;

  template <int K>
  __device__ void operator()(int64_t i) const {
    using A = Accum<T>;
    const int64_t at = place(i);
    T gs[K];
    T us[K];
    T ds[K];
    load<K>(gate + at, gs);
    load<K>(up + at, us);
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
    store<K>(dgate + at, gs);
    store<K>(dup + at, us);
    if constexpr (kEmitsY) store<K>(y + i, ds);
  }
};

template <class T>
void launch_gate(const KernelArgs& args, bool packed) {
  const Tensor& y = args.out[0];
  const T* gate = args.in[0].as<T>();
  if (packed) {
    const T* up = gate + y.dim(-1);
    const Gate<T, Packed> f{{Divisor(std::max<int64_t>(y.dim(-1), 1))}, gate, up, y.as<T>()};
    launch_vectors(y.numel(), args.stream, f, gate, up, f.y);
  } else {
    const Gate<T, Apart> f{{}, gate, args.in[1].as<T>(), y.as<T>()};
    launch_vectors(y.numel(), args.stream, f, gate, f.up, f.y);
  }
}

template <class T, bool kEmitsY>
void launch_grad(const KernelArgs& args, bool packed) {
  const Tensor& dy = args.in[packed ? 1 : 2];
  T* y = kEmitsY ? args.out[packed ? 1 : 2].as<T>() : nullptr;
  const T* gate = args.in[0].as<T>();
  T* dgate = args.out[0].as<T>();
  const auto launch = [&](const auto& f) {
    launch_vectors(dy.numel(), args.stream, f, gate, f.up, f.dy, dgate, f.dup, y);
  };
  if (packed) {
    const int64_t F = dy.dim(-1);
    launch(GateGrad<T, kEmitsY, Packed>{
        {Divisor(std::max<int64_t>(F, 1))}, gate, gate + F, dy.as<T>(), dgate, dgate + F, y});
  } else {
    launch(GateGrad<T, kEmitsY, Apart>{
        {}, gate, args.in[1].as<T>(), dy.as<T>(), dgate, args.out[1].as<T>(), y});
  }
}

}  // namespace

Kernel prepare(const Swiglu& op, const KernelTypes& types, const Setup&) {
  return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
    return [packed = op.packed](const KernelArgs& args) { launch_gate<T>(args, packed); };
  });
}

Kernel prepare(const SwigluGrad& op, const KernelTypes& types, const Setup&) {
  return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
    return [packed = op.packed, emits_y = op.emits_y](const KernelArgs& args) {
      emits_y ? launch_grad<T, true>(args, packed) : launch_grad<T, false>(args, packed);
    };
  });
}

}  // namespace tokamak::gpu
