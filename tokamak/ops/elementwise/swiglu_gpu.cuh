// The arithmetic of gates and of their gradients, which several kernels share: all make the same
// bits.
#pragma once

#include <algorithm>
#include <type_traits>

#include "tokamak/gpu/dispatch.cuh"
#include "tokamak/gpu/divisor.cuh"
#include "tokamak/gpu/math.cuh"
#include "tokamak/ops/elementwise/gelu_gpu.cuh"
#include "tokamak/ops/elementwise/swiglu.h"

namespace tokamak::gpu {

/// Stores x, rounded, at place k; two of bf16 by one conversion.
template <int K, class T, class A, int kEach>
__device__ inline void put_rounded(const A (&x)[kEach], T (&into)[K], int k) {
#ifndef TOK_HIP
  if constexpr (std::is_same_v<T, __nv_bfloat16> && kEach == 2) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(x[0], x[1]);
    into[k] = both.x;
    into[k + 1] = both.y;
  } else
#endif
  {
#pragma unroll
    for (int i = 0; i < kEach; ++i) into[k + i] = to<T>(x[i]);
  }
}

// An activation is x share(x). d_x() is its gradient for d = dy up and s = share(x).
namespace gates {

struct Silu {
  template <class A>
  static __device__ A share(A x) {
    return sigmoid(x);
  }

  template <class A>
  static __device__ A d_x(A d, A x, A s) {
    return d * s * (A{1} + x * (A{1} - s));
  }
};

struct GeluTanh {
  template <class A>
  static __device__ A share(A x) {
    return gelu::Tanh::gate(x);
  }

  template <class A>
  static __device__ A d_x(A d, A x, A s) {
    const A slope = A(gelu::kSqrt8OverPi) * (A{1} + A(3.0 * gelu::kCubic) * x * x);
    return d * s * (A{1} + x * (A{1} - s) * slope);
  }
};

}  // namespace gates

/// Replaces g by y = g share(g) u.
template <class Form = gates::Silu, int K, class T>
__device__ inline void apply_gates(T (&g)[K], const T (&u)[K]) {
  using A = Accum<T>;
  constexpr int kEach = K % 2 == 0 ? 2 : 1;
#pragma unroll
  for (int k = 0; k < K; k += kEach) {
    A y[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const auto a = to<A>(g[k + i]);
      y[i] = a * Form::share(a) * to<A>(u[k + i]);
    }
    put_rounded(y, g, k);
  }
}

/// With s = share(g), replaces g by dg = dy u (g s)', u by du = dy g s, and dy by y = g s u, as
/// apply_gates makes it.
template <class Form = gates::Silu, int K, class T>
__device__ inline void differentiate_gates(T (&gs)[K], T (&us)[K], T (&ds)[K]) {
  using A = Accum<T>;
  constexpr int kEach = K % 2 == 0 ? 2 : 1;
#pragma unroll
  for (int k = 0; k < K; k += kEach) {
    A y[kEach];
    A dg[kEach];
    A du[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const A g = to<A>(gs[k + i]);
      const A u = to<A>(us[k + i]);
      const A d = to<A>(ds[k + i]);
      const A s = Form::share(g);
      y[i] = g * s * u;
      dg[i] = Form::d_x(d * u, g, s);
      du[i] = d * g * s;
    }
    put_rounded(y, ds, k);
    put_rounded(dg, gs, k);
    put_rounded(du, us, k);
  }
}

/// The offset of y's element i in gate, up and their gradients. Packed rows hold twice y's columns:
/// row r begins r F later there.
struct ApartGates {
  __device__ int64_t operator()(int64_t i) const { return i; }
};

struct PackedGates {
  Divisor columns;

  __device__ int64_t operator()(int64_t i) const {
    return i + columns.quotient(i) * columns.value();
  }
};

/// y = g share(g) u, which is stored where `y` is not null; three accesses per element, or two.
template <class Form, class T, class Place>
struct Gate {
  using Element = T;
  Place place;
  const T* gate;
  const T* up;
  T* y;

  template <int K>
  __device__ void operator()(int64_t i) const {
    T g[K];
    values(i, g);
  }

  /// Computes elements [i, i + K).
  template <int K>
  __device__ void values(int64_t i, T (&g)[K]) const {
    const int64_t at = place(i);
    T u[K];
    load<K>(gate + at, g);
    load<K>(up + at, u);
    apply_gates<Form>(g, u);
    if (y != nullptr) store<K>(y + i, g);
  }
};

/// Calls f(gate, n, F) with the Gate of a kernel's operands, the number of its elements and of
/// columns. y is the first output, or null if it is not stored.
template <class Form, class T, class F>
void with_gate(const KernelArgs& args, bool packed, bool stores, const F& f) {
  const Tensor& x = args.in[0];
  const int64_t columns = packed ? x.dim(-1) / 2 : x.dim(-1);
  const int64_t n = packed ? x.numel() / 2 : x.numel();
  const T* gate = x.as<T>();
  const T* up = packed ? gate + columns : args.in[1].as<T>();
  T* y = stores ? args.out[0].as<T>() : nullptr;
  if (packed) {
    const PackedGates place{Divisor(std::max<int64_t>(columns, 1))};
    f(Gate<Form, T, PackedGates>{place, gate, up, y}, n, columns);
  } else {
    f(Gate<Form, T, ApartGates>{{}, gate, up, y}, n, columns);
  }
}

/// Returns the kernel of SwigluGrad. With `takes_maximum` the last output is the greatest magnitude
/// of dgate and dup (gpu/amax.cuh).
Kernel swiglu_grad_kernel(const SwigluGrad& op, const KernelTypes& types, bool takes_maximum);

}  // namespace tokamak::gpu
