// The arithmetic of GELU and of its gradient, which several kernels share: all make the same bits.
#pragma once

#include "tokamak/gpu/dispatch.cuh"
#include "tokamak/gpu/math.cuh"
#include "tokamak/ops/elementwise/gelu.h"

namespace tokamak::gpu {

// Forms of GELU and of what stands in its place: y = value(x), dy/dx = slope(x).
namespace gelu {

inline constexpr double kSqrt8OverPi = 1.5957691216057308;
inline constexpr double kInvSqrt2Pi = 0.39894228040143268;
inline constexpr double kCubic = 0.044715;

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

}  // namespace gelu

/// Replaces x by dx = dy slope(x), and dy by y = value(x) if that is wanted.
template <bool kEmitsY, class Form, int K, class T>
__device__ inline void differentiate_gelu(T (&xs)[K], T (&ds)[K]) {
  using A = Accum<T>;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const A x = to<A>(xs[k]);
    xs[k] = to<T>(to<A>(ds[k]) * Form::slope(x));
    if constexpr (kEmitsY) ds[k] = to<T>(Form::value(x));
  }
}

/// Calls `make` with the form that `kind` names.
template <class Make>
auto by_gelu_kind(GeluKind kind, Make&& make) {
  switch (kind) {
    case GeluKind::kTanh:
      return make.template operator()<gelu::Tanh>();
    case GeluKind::kExact:
      return make.template operator()<gelu::Exact>();
    case GeluKind::kQuick:
      return make.template operator()<gelu::Sigmoid<1702>>();
    case GeluKind::kSilu:
      return make.template operator()<gelu::Sigmoid<1000>>();
    case GeluKind::kRelu:
      return make.template operator()<gelu::Relu>();
    case GeluKind::kHyperbolic:
      return make.template operator()<gelu::Hyperbolic>();
  }
  return make.template operator()<gelu::Tanh>();
}

/// y = value(x), which is stored where `y` is not null; two accesses per element, or one.
template <class T, class Form>
struct Activate {
  using Element = T;
  const T* x;
  T* y;

  template <int K>
  __device__ void operator()(int64_t i) const {
    T v[K];
    values(i, v);
  }

  /// Computes elements [i, i + K).
  template <int K>
  __device__ void values(int64_t i, T (&v)[K]) const {
    load<K>(x + i, v);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const auto a = to<Accum<T>>(v[k]);
      v[k] = to<T>(Form::value(a));
    }
    if (y != nullptr) store<K>(y + i, v);
  }
};

/// Returns the kernel of GeluGrad. With `takes_maximum` the last output is the greatest magnitude
/// of dx (gpu/amax.cuh).
Kernel gelu_grad_kernel(const GeluGrad& op, const KernelTypes& types, bool takes_maximum);

}  // namespace tokamak::gpu
