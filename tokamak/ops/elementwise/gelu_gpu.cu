#include "tokamak/gpu/amax.cuh"
#include "tokamak/ops/elementwise/gelu_gpu.cuh"

namespace tokamak::gpu {
namespace {

// dx = dy slope(x), and y as Activate makes it; three accesses per element, four with y.
// Returns the greatest magnitude of dx.
template <class T, class Form, bool kEmitsY>
struct Differentiate {
  using Element = T;
  const T* x;
  const T* dy;
  T* dx;
  T* y;

  template <int K>
  __device__ uint32_t operator()(int64_t i) const {
    T v[K];
    T d[K];
    load<K>(x + i, v);
    load<K>(dy + i, d);
    differentiate_gelu<kEmitsY, Form>(v, d);
    store<K>(dx + i, v);
    if constexpr (kEmitsY) store<K>(y + i, d);
    return magnitude_of(v);
  }
};

template <class T, class Form, bool kEmitsY>
void launch_grad(const KernelArgs& args, uint32_t* most) {
  const Differentiate<T, Form, kEmitsY> f{args.in[0].as<T>(), args.in[1].as<T>(),
                                          args.out[0].as<T>(),
                                          kEmitsY ? args.out[1].as<T>() : nullptr};
  launch_vectors_max(args.out[0].numel(), args.stream, f, most, f.x, f.dy, f.dx, f.y);
}

}  // namespace

Kernel gelu_grad_kernel(const GeluGrad& op, const KernelTypes& types, bool takes_maximum) {
  return by_gelu_kind(op.kind, [&]<class Form>() -> Kernel {
    return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
      const auto launch = op.emits_y ? launch_grad<T, Form, true> : launch_grad<T, Form, false>;
      return [=](const KernelArgs& args) { launch(args, maximum_of(args, takes_maximum)); };
    });
  });
}

Kernel prepare(const Gelu& op, const KernelTypes& types, const Setup&) {
  return by_gelu_kind(op.kind, [&]<class Form>() -> Kernel {
    return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
      return [](const KernelArgs& args) {
        const Activate<T, Form> f{args.in[0].as<T>(), args.out[0].as<T>()};
        launch_vectors(args.in[0].numel(), args.stream, f, f.x, f.y);
      };
    });
  });
}

Kernel prepare(const GeluGrad& op, const KernelTypes& types, const Setup&) {
  return gelu_grad_kernel(op, types, false);
}

}  // namespace tokamak::gpu
