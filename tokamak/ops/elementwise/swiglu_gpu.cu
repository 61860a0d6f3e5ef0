#include "tokamak/gpu/amax.cuh"
#include "tokamak/gpu/dependent.cuh"
#include "tokamak/ops/elementwise/swiglu_gpu.cuh"

namespace tokamak::gpu {
namespace {

template <class Form, class T>
void launch_gate(const KernelArgs& args, bool packed, bool waits) {
  with_gate<Form, T>(args, packed, true, [&](const auto& f, int64_t n, int64_t) {
    waits ? launch_vectors_for_few(n, args.stream, f, f.gate, f.up, f.y)
          : launch_vectors(n, args.stream, f, f.gate, f.up, f.y);
  });
}

// See differentiate_gates; five accesses per element, six with y. All inputs are read first:
// outputs may lie on any of them. Returns the greatest magnitude of dgate and dup.
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
    launch(GateGrad<Form, T, kEmitsY, PackedGates>{
        {Divisor(std::max<int64_t>(F, 1))}, gate, gate + F, dy.as<T>(), dgate, dgate + F, y});
  } else {
    launch(GateGrad<Form, T, kEmitsY, ApartGates>{
        {}, gate, args.in[1].as<T>(), dy.as<T>(), dgate, args.out[1].as<T>(), y});
  }
}

template <class Form, class T>
auto grad_launcher(bool emits_y) {
  return emits_y ? launch_grad<Form, T, true> : launch_grad<Form, T, false>;
}

}  // namespace

Kernel swiglu_grad_kernel(const SwigluGrad& op, const KernelTypes& types, bool takes_maximum) {
  return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
    const auto launch = op.kind == GateKind::kGelu ? grad_launcher<gates::GeluTanh, T>(op.emits_y)
                                                   : grad_launcher<gates::Silu, T>(op.emits_y);
    return [=, packed = op.packed](const KernelArgs& args) {
      launch(args, packed, maximum_of(args, takes_maximum));
    };
  });
}

Kernel prepare(const Swiglu& op, const KernelTypes& types, const Setup& setup) {
  const bool waits = waits_for_few(setup, rows_of(types.in[0]));
  return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
    const auto launch =
        op.kind == GateKind::kGelu ? launch_gate<gates::GeluTanh, T> : launch_gate<gates::Silu, T>;
    return [=, packed = op.packed](const KernelArgs& args) { launch(args, packed, waits); };
  });
}

Kernel prepare(const SwigluGrad& op, const KernelTypes& types, const Setup&) {
  return swiglu_grad_kernel(op, types, false);
}

}  // namespace tokamak::gpu
