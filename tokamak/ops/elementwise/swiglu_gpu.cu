#include "tokamak/gpu/divisor.cuh"
#include "tokamak/ops/elementwise/swiglu_gpu.cuh"
#include "tokamak/ops/float8/fused_float8_gpu.cuh"

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
  __device__ uint32_t operator()(int64_t i) const {
    const int64_t at = place(i);
    T g[K];
    T u[K];
    load<K>(gate + at, g);
    load<K>(up + at, u);
    apply_gates(g, u);
    store<K>(y + i, g);
    return magnitude_of(g);
  }
};

// See differentiate_gates; five accesses per element, six with y. All inputs are read first:
// outputs may lie on any of them.
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
  __device__ uint32_t operator()(int64_t i) const {
    const int64_t at = place(i);
    T gs[K];
    T us[K];
    T ds[K];
    load<K>(gate + at, gs);
    load<K>(up + at, us);
    load<K>(dy + i, ds);
    differentiate_gates(gs, us, ds);
    store<K>(dgate + at, gs);
    store<K>(dup + at, us);
    if constexpr (kEmitsY) store<K>(y + i, ds);
    return max(magnitude_of(gs), magnitude_of(us));
  }
};

template <class T>
void launch_gate(const KernelArgs& args, bool packed, uint32_t* most) {
  const Tensor& y = args.out[0];
  const T* gate = args.in[0].as<T>();
  if (packed) {
    const T* up = gate + y.dim(-1);
    const Gate<T, Packed> f{{Divisor(std::max<int64_t>(y.dim(-1), 1))}, gate, up, y.as<T>()};
    launch_vectors_max(y.numel(), args.stream, f, most, gate, up, f.y);
  } else {
    const Gate<T, Apart> f{{}, gate, args.in[1].as<T>(), y.as<T>()};
    launch_vectors_max(y.numel(), args.stream, f, most, gate, f.up, f.y);
  }
}

template <class T, bool kEmitsY>
void launch_grad(const KernelArgs& args, bool packed, uint32_t* most) {
  const Tensor& dy = args.in[packed ? 1 : 2];
  T* y = kEmitsY ? args.out[packed ? 1 : 2].as<T>() : nullptr;
  const T* gate = args.in[0].as<T>();
  T* dgate = args.out[0].as<T>();
  const auto launch = [&](const auto& f) {
    launch_vectors_max(dy.numel(), args.stream, f, most, gate, f.up, f.dy, dgate, f.dup, y);
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

Kernel forward(const Swiglu& op, const KernelTypes& types, bool takes_maximum) {
  return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
    return [=, packed = op.packed](const KernelArgs& args) {
      launch_gate<T>(args, packed, maximum_of(args, takes_maximum));
    };
  });
}

Kernel gradient(const SwigluGrad& op, const KernelTypes& types, bool takes_maximum) {
  return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
    const auto launch = op.emits_y ? launch_grad<T, true> : launch_grad<T, false>;
    return [=, packed = op.packed](const KernelArgs& args) {
      launch(args, packed, maximum_of(args, takes_maximum));
    };
  });
}

}  // namespace

Kernel prepare(const Swiglu& op, const KernelTypes& types, const Setup&) {
  return forward(op, types, false);
}

Kernel prepare_with_maximum(const Swiglu& op, const KernelTypes& types, const Setup&) {
  return forward(op, types, true);
}

Kernel prepare(const SwigluGrad& op, const KernelTypes& types, const Setup&) {
  return gradient(op, types, false);
}

Kernel prepare_with_maximum(const SwigluGrad& op, const KernelTypes& types, const Setup&) {
  return gradient(op, types, true);
}

}  // namespace tokamak::gpu
