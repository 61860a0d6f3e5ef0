#include "tokamak/ops/elementwise/gelu_gpu.cuh"
#include "tokamak/ops/float8/fused_float8_gpu.cuh"

namespace tokamak::gpu {
namespace {

// y = value(x); two accesses per element, one where only codes of y are stored.
template <class T, class Form>
struct Activate {
  using Element = T;
  const T* x;
  T* y;

  DelayedCodes codes = {};

  template <int K>
  __device__ uint32_t operator()(int64_t i) const {
    T v[K];
    compute(i, v);
    if (y != nullptr) store<K>(y + i, v);
    if (codes.codes != nullptr) codes.store<E4M3>(i, v);
    return magnitude_of(v);
  }

  template <int K>
  __device__ void values(int64_t i, T (&v)[K]) const {
    compute(i, v);
    if (y != nullptr) store<K>(y + i, v);
  }

 private:
  template <int K>
  __device__ void compute(int64_t i, T (&v)[K]) const {
    load<K>(x + i, v);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const auto a = to<Accum<T>>(v[k]);
      v[k] = to<T>(Form::value(a));
    }
  }
};

// dx = dy slope(x), and y as Activate makes it; three accesses per element, four with y.
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

template <class T, class Form>
void launch(const KernelArgs& args, const FusedOutput& fused) {
  const Tensor& x = args.in[0];
  const DelayedCodes codes = delayed_codes_of(args, fused);
  const Activate<T, Form> f{x.as<T>(), fused.stores ? args.out[0].as<T>() : nullptr, codes};
  const int64_t n = x.numel();
  if (fused.is_gated()) {
    launch_gated_max(n, args.stream, f, gate_of(args, fused), f.x);
  } else if (fused.makes_codes_of_rows()) {
    const int64_t D = x.dim(-1);
    launch_codes_of_rows<E4M3>(f, D == 0 ? 0 : n / D, D, codes_of(args, fused), args.stream, f.x,
                               f.y);
  } else {
    launch_vectors_max(n, args.stream, f, maximum_of(args, fused.takes_maximum), f.x, f.y,
                       codes.codes);
    if (n == 0) store_inverse_of_none<E4M3>(codes, args.stream);
  }
}

template <class T, class Form, bool kEmitsY>
void launch_grad(const KernelArgs& args, uint32_t* most) {
  const Differentiate<T, Form, kEmitsY> f{args.in[0].as<T>(), args.in[1].as<T>(),
                                          args.out[0].as<T>(),
                                          kEmitsY ? args.out[1].as<T>() : nullptr};
  launch_vectors_max(args.out[0].numel(), args.stream, f, most, f.x, f.dy, f.dx, f.y);
}

Kernel prepare_forward(const Gelu& op, const KernelTypes& types, const FusedOutput& fused) {
  return by_gelu_kind(op.kind, [&]<class Form>() -> Kernel {
    return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
      return [=](const KernelArgs& args) { launch<T, Form>(args, fused); };
    });
  });
}

Kernel prepare_gradient(const GeluGrad& op, const KernelTypes& types, bool takes_maximum) {
  return by_gelu_kind(op.kind, [&]<class Form>() -> Kernel {
    return by_float(types.out[0].dtype, [&]<class T>() -> Kernel {
      const auto launch = op.emits_y ? launch_grad<T, Form, true> : launch_grad<T, Form, false>;
      return [=](const KernelArgs& args) { launch(args, maximum_of(args, takes_maximum)); };
    });
  });
}

}  // namespace

Kernel prepare(const Gelu& op, const KernelTypes& types, const Setup&) {
  return prepare_forward(op, types, {});
}

Kernel prepare_fused(const Gelu& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup&) {
  return prepare_forward(op, types, fused);
}

Kernel prepare(const GeluGrad& op, const KernelTypes& types, const Setup&) {
  return prepare_gradient(op, types, false);
}

Kernel prepare_fused(const GeluGrad& op, const KernelTypes& types, const FusedOutput& fused,
                     const Setup&) {
  return prepare_gradient(op, types, fused.takes_maximum);
}

}  // namespace tokamak::gpu
