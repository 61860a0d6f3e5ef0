// The arithmetic of gates and of their gradients, which several kernels share: all make the same
// bits.
#pragma once

#include "tokamak/gpu/math.cuh"

namespace tokamak::gpu {

/// Replaces g by y = g sigmoid(g) u.
template <int K, class T>
__device__ inline void apply_gates(T (&g)[K], const T (&u)[K]) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const auto a = to<Accum<T>>(g[k]);
    g[k] = to<T>(a * sigmoid(a) * to<Accum<T>>(u[k]));
  }
}

/// With s = sigmoid(g), replaces g by dg = dy u s (1 + g (1 - s)), u by du = dy g s, and dy by
/// y = g s u, as apply_gates makes it.
template <int K, class T>
__device__ inline void differentiate_gates(T (&gs)[K], T (&us)[K], T (&ds)[K]) {
  using A = Accum<T>;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const A g = to<A>(gs[k]);
    const A u = to<A>(us[k]);
    const A d = to<A>(ds[k]);
    const A s = sigmoid(g);
    ds[k] = to<T>(g * s * u);
    gs[k] = to<T>(d * u * s * (A{1} + g * (A{1} - s)));
    us[k] = to<T>(d * g * s);
  }
}

}  // namespace tokamak::gpu
