#include "tokamak/gpu/dependent.cuh"
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

// y = g share(g) u; three accesses per element, two where only codes of y are stored.
template <class Form, class T, class Place>
struct Gate {
  using Element = T;
  Place place;
  const T* gate;
  const T* up;
  T* y;

  DelayedCodes codes = {};

  template <int K>
  __device__ uint32_t operator()(int64_t i) const {
    T g[K];
    compute(i, g);
    if (y != nullptr) store<K>(y + i, g);
    if (codes.codes != nullptr) codes.store<E4M3>(i, g);
    return magnitude_of(g);
  }

  template <int K>
  __device__ void values(int64_t i, T (&g)[K]) const {
    compute(i, g);
    if (y != nullptr) store<K>(y + i, g);
  }

 private:
  template <int K>
  __device__ void compute(int64_t i, T (&g)[K]) const {
    const int64_t at = place(i);
    T u[K];
    load<K>(gate + at, g);
    load<K>(up + at, u);
    apply_gates<Form>(g, u);
  }
};

// See differentiate_gates; five accesses per element, six with y. All inputs are read first:
// outputs may lie on any of them.
template <class Form, class T, bool kEmitsY, class Place>
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
    differentiate_gates<Form>(gs, us, ds);
    store<K>(dgate + at, gs);
    store<K>(dup + at, us);
    if constexpr (kEmitsY) store<K>(y + i, ds);
    return max(magnitude_of(gs), magnitude_of(us));
  }
};

template <class Form, class T>
void launch_gate(const KernelArgs& args, bool packed, const FusedOutput& fused, bool waits) {
  const Tensor& x = args.in[0];
  const int64_t F = packed ? x.dim(-1) / 2 : x.dim(-1);
  const int64_t n = packed ? x.numel() / 2 : x.numel();
  const T* gate = x.as<T>();
  const T* up = packed ? gate + F : args.in[1].as<T>();
  T* y = fused.stores ? args.out[0].as<T>() : nullptr;
  const DelayedCodes codes = delayed_codes_of(args, fused);
  const auto launch = [&](const auto& f) {
    if (waits) {
      launch_vectors_for_few(n, args.stream, f, gate, up, y);
    } else if (fused.is_gated()) {
      launch_gated_max(n, args.stream, f, gate_of(args, fused), gate, up);
    } else if (fused.makes_codes_of_rows()) {
      launch_codes_of_rows<E4M3>(f, F == 0 ? 0 : n / F, F, codes_of(args, fused), args.stream, gate,
                                 up, y);
    } else {
      launch_vectors_max(n, args.stream, f, maximum_of(args, fused.takes_maximum), gate, up, y,
                         codes.codes);
      if (n == 0) store_inverse_of_none<E4M3>(codes, args.stream);
    }
  };
  if (packed) {
    launch(Gate<Form, T, Packed>{{Divisor(std::max<int64_t>(F, 1))}, gate, up, y, codes});
  } else {
    launch(Gate<Form, T, Apart>{{}, gate, up, y, codes});
  }
}

template <class Form, class T, bool kEmitsY>
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
    launch(GateGrad<Form, T, kEmitsY, Packed>{
        {Divisor(std::max<int64_t>(F, 1))}, gate, gate + F, dy.as<T>(), dgate, dgate + F, y});
  } else {
    launch(GateGrad<Form, T, kEmitsY, Apart>{
        {}, gate, args.in[1].as<T>(), dy.as<T>(), dgate, args.out[1].as<T>(), y});
  }
}

Kernel forward(const Swiglu& op, const KernelTypes& types, const FusedOutput& fused, bool waits) {
  return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
    const auto launch =
        op.kind == GateKind::kGelu ? launch_gate<gates::GeluTanh, T> : launch_gate<gates::Silu, T>;
    return [=, packed = op.packed](const KernelArgs& args) { launch(args, packed, fused, waits); };
  });
}

template <class Form, class T>
auto grad_launcher(bool emits_y) {
  return emits_y ? launch_grad<Form, T, true> : launch_grad<Form, T, false>;
}

Kernel gradient(const SwigluGrad& op, const KernelTypes& types, bool takes_maximum) {
  return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
    const auto launch = op.kind == GateKind::kGelu ? grad_launcher<gates::GeluTanh, T>(op.emits_y)
                                                   : grad_launcher<gates::Silu, T>(op.emits_y);
    return [=, packed = op.packed](const KernelArgs& args) {
      launch(args, packed, maximum_of(args, takes_maximum));
    };
  });
}

}  // namespace

Kernel prepare(const Swiglu& op, const KernelTypes& types, const Setup& setup) {
  return forward(op, types, {}, waits_for_few(setup, rows_of(types.in[0])));
}

Kernel prepare_fused(const Swiglu& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup&) {
  return forward(op, types, fused, false);
}

Kernel prepare(const SwigluGrad& op, const KernelTypes& types, const Setup&) {
  return gradient(op, types, false);
}

Kernel prepare_fused(const SwigluGrad& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup&) {
  return gradient(op, types, fused.takes_maximum);
}

}  // namespace tokamak::gpu
