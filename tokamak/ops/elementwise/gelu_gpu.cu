#include "tokamak/gpu/math.cuh"
#include "tokamak/ops/float8/fused_float8_gpu.cuh"

namespace tokamak::gpu {
namespace {

constexpr double kSqrt8OverPi = 1.5957691216057308;
constexpr double kInvSqrt2Pi = 0.39894228040143268;
constexpr double kCubic = 0.044715;

// (1 + tanh u) / 2 = sigmoid(2 u)
struct Tanh {
  template <class A>
  static __device__ A gate(A x) {
    return sigmoid(A(kSqrt8OverPi) * x * (A{1} + A(kCubic) * x * x));
  }

  template <class A>
  static __device__ A slope(A x) {
    const A s = gate(x);
    return s + x * s * (A{1} - s) * A(kSqrt8OverPi) * (A{1} + A(3.0 * kCubic) * x * x);
  }

  template <class A>
  static __device__ A value(A x) {
    return x * gate(x);
  }
};

struct Exact {
  template <class A>
  static __device__ A value(A x) {
    return x * normal_distribution(x);
  }

  template <class A>
  static __device__ A slope(A x) {
    return normal_distribution(x) + x * A(kInvSqrt2Pi) * exponential(A(-0.5) * x * x);
  }
};

// y = value(x); two accesses per element, one where only codes of y are stored.
template <class T, class Form>
struct Activate {
  using Element = T;
  const T* x;
  T* y;

  template <int K>
  __device__ uint32_t operator()(int64_t i) const {
    T v[K];
    compute(i, v);
    store<K>(y + i, v);
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
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const auto a = to<Accum<T>>(v[k]);
      v[k] = to<T>(to<Accum<T>>(d[k]) * Form::slope(a));
      if constexpr (kEmitsY) d[k] = to<T>(Form::value(a));
    }
    store<K>(dx + i, v);
    if constexpr (kEmitsY) store<K>(y + i, d);
    return magnitude_of(v);
  }
};

template <class T, class Form>
void launch(const KernelArgs& args, const FusedOutput& fused) {
  const Tensor& x = args.in[0];
  const Activate<T, Form> f{x.as<T>(), fused.stores ? args.out[0].as<T>() : nullptr};
  if (fused.makes_codes) {
    const int64_t D = x.dim(-1);
    launch_codes_of_rows<E4M3>(f, D == 0 ? 0 : x.numel() / D, D, codes_of(args, fused), args.stream,
                               f.x, f.y);
  } else {
    launch_vectors_max(x.numel(), args.stream, f, maximum_of(args, fused.takes_maximum), f.x, f.y);
  }
}

template <class T, class Form, bool kEmitsY>
void launch_grad(const KernelArgs& args, uint32_t* most) {
  const Differentiate<T, Form, kEmitsY> f{args.in[0].as<T>(), args.in[1].as<T>(),
                                          args.out[0].as<T>(),
                                          kEmitsY ? args.out[1].as<T>() : nullptr};
  launch_vectors_max(args.out[0].numel(), args.stream, f, most, f.x, f.dy, f.dx, f.y);
}

// x sigmoid(kTimes x / 1000)
template <int kTimes>
struct Sigmoid {
  static constexpr double kFactor = kTimes / 1000.0;

  template <class A>
  static __device__ A value(A x) {
    return x * sigmoid(A(kFactor) * x);
  }

  template <class A>
  static __device__ A slope(A x) {
    const A s = sigmoid(A(kFactor) * x);
    return s + A(kFactor) * x * s * (A{1} - s);
  }
};

struct Relu {
  template <class A>
  static __device__ A value(A x) {
    return x > A{0} ? x : A{0};
  }

  template <class A>
  static __device__ A slope(A x) {
    return x > A{0} ? A{1} : A{0};
  }
};

// tanh x = 2 sigmoid(2 x) - 1
struct Hyperbolic {
  template <class A>
  static __device__ A value(A x) {
    return A{2} * sigmoid(A{2} * x) - A{1};
  }

  template <class A>
  static __device__ A slope(A x) {
    const A y = value(x);
    return A{1} - y * y;
  }
};

template <class Make>
Kernel by_kind(GeluKind kind, Make&& make) {
  switch (kind) {
    case GeluKind::kTanh:
      return make.template operator()<Tanh>();
    case GeluKind::kExact:
      return make.template operator()<Exact>();
    case GeluKind::kQuick:
      return make.template operator()<Sigmoid<1702>>();
    case GeluKind::kSilu:
      return make.template operator()<Sigmoid<1000>>();
    case GeluKind::kRelu:
      return make.template operator()<Relu>();
    case GeluKind::kHyperbolic:
      return make.template operator()<Hyperbolic>();
  }
  return {};
}

Kernel prepare_forward(const Gelu& op, const KernelTypes& types, const FusedOutput& fused) {
  return by_kind(op.kind, [&]<class Form>() -> Kernel {
    return by_float(types.in[0].dtype, [&]<class T>() -> Kernel {
      return [=](const KernelArgs& args) { launch<T, Form>(args, fused); };
    });
  });
}

Kernel prepare_gradient(const GeluGrad& op, const KernelTypes& types, bool takes_maximum) {
  return by_kind(op.kind, [&]<class Form>() -> Kernel {
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
