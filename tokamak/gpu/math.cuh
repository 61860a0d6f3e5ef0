// Elementary functions that kernels share. The float versions are what memory-bound kernels can
// afford at full bandwidth: good to 1e-7 relative near 0, e^x to |x| 1e-7.
#pragma once

#include "tokamak/gpu/dispatch.cuh"

namespace tokamak::gpu {

__device__ inline float exponential(float x) {
  return __expf(x);
}

__device__ inline double exponential(double x) {
  return exp(x);
}

/// 1 / (1 + e^-x); 0 where e^-x is above 2^126.
__device__ inline float sigmoid(float x) {
  return __fdividef(1.0F, 1.0F + __expf(-x));
}

__device__ inline double sigmoid(double x) {
  return 1.0 / (1.0 + exp(-x));
}

/// P(Z < x) for standard normal Z: with z = |x| / sqrt(2), the tail is e^(-z^2) t Q(t) / 2, where
/// t = 1 / (1 + 0.4 z) and t Q(t) fits the scaled complementary error function.
__device__ inline float normal_distribution(float x) {
  const float t = __fdividef(1.0F, 1.0F + 0.4F * 0x1.6a09e6p-1F * fabsf(x));
  float q = -2.8299263e-2F;
  q = q * t + 1.3569411e-1F;
  q = q * t - 2.2490779e-1F;
  q = q * t + 1.2417910e-1F;
  q = q * t - 3.6427788e-2F;
  q = q * t + 7.8643806e-2F;
  q = q * t + 1.2072657e-1F;
  q = q * t + 1.7138485e-1F;
  q = q * t + 2.0765754e-1F;
  q = q * t + 2.2567297e-1F;
  q = q * t + 2.2567591e-1F;
  const float tail = 0.5F * q * t * exponential(-0.5F * x * x);
  return x < 0.0F ? tail : 1.0F - tail;
}

__device__ inline double normal_distribution(double x) {
  return normcdf(x);
}

}  // namespace tokamak::gpu
