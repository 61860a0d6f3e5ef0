// Elementary functions that kernels share, exact to a few ulp of their type.
#pragma once

#include "tokamak/gpu/dispatch.cuh"

namespace tokamak::gpu {

__device__ inline float exponential(float x) {
  return expf(x);
}

__device__ inline double exponential(double x) {
  return exp(x);
}

/// 1 / (1 + e^-x); 0 where e^-x is above a float's range.
__device__ inline float sigmoid(float x) {
  return __fdividef(1.0F, 1.0F + expf(-x));
}

__device__ inline double sigmoid(double x) {
  return 1.0 / (1.0 + exp(-x));
}

/// P(Z < x) for standard normal Z.
__device__ inline float normal_distribution(float x) {
  return normcdff(x);
}

__device__ inline double normal_distribution(double x) {
  return normcdf(x);
}

}  // namespace tokamak::gpu
