// The arithmetic of random.h's normal_quantile, for random.cpp and for a GPU kernel. It only adds,
// multiplies, divides and takes roots. Code that includes it must be compiled without fused
// multiply-add, or the bits differ.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__) || defined(__HIP__)
#define TOK_HOST_DEVICE __host__ __device__
#else
#define TOK_HOST_DEVICE
#endif

namespace tokamak::fixed {

// Computes the natural logarithm from the exponent and an atanh series of the mantissa in
// [1/sqrt2, sqrt2).
TOK_HOST_DEVICE inline double fixed_log(double x) {
  auto bits = std::bit_cast<uint64_t>(x);
  auto exponent = static_cast<int>(bits >> 52U) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFU) | 0x3FF0000000000000U);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double t = (m - 1.0) / (m + 1.0);
  const double t2 = t * t;
  double sum = 0.0;
  for (int k = 21; k >= 1; k -= 2) sum = sum * t2 + 1.0 / k;
  return 2.0 * t * sum + exponent * 0.6931471805599453;
}

template <size_t N>
TOK_HOST_DEVICE inline double polynomial(const double (&c)[N], double x) {
  double y = c[N - 1];
  for (size_t i = N - 1; i-- > 0;) y = y * x + c[i];
  return y;
}

TOK_HOST_DEVICE inline double normal_quantile(double p) {
  const double q = p - 0.5;
  if (q > -0.425 && q < 0.425) {
    static constexpr double kA[] = {3.3871328727963666080e0, 1.3314166789178437745e2,
                                    1.9715909503065514427e3, 1.3731693765509461125e4,
                                    4.5921953931549871457e4, 6.7265770927008700853e4,
                                    3.3430575583588128105e4, 2.5090809287301226727e3};
    static constexpr double kB[] = {1.0,
                                    4.2313330701600911252e1,
                                    6.8718700749205790830e2,
                                    5.3941960214247511077e3,
                                    2.1213794301586595867e4,
                                    3.9307895800092710610e4,
                                    2.8729085735721942674e4,
                                    5.2264952788528545610e3};
    const double r = 0.180625 - q * q;
    return q * polynomial(kA, r) / polynomial(kB, r);
  }
  double r = sqrt(-fixed_log(q < 0 ? p : 1.0 - p));
  double z = 0.0;
  if (r <= 5.0) {
    static constexpr double kC[] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                    5.76949722146069140550e0,  3.64784832476320460504e0,
                                    1.27045825245236838258e0,  2.41780725177450611770e-1,
                                    2.27238449892691845833e-2, 7.74545014278341407640e-4};
    static constexpr double kD[] = {1.0,
                                    2.05319162663775882187e0,
                                    1.67638483018380384940e0,
                                    6.89767334985100004550e-1,
                                    1.48103976427480074590e-1,
                                    1.51986665636164571966e-2,
                                    5.47593808499534494600e-4,
                                    1.05075007164441684324e-9};
    r -= 1.6;
    z = polynomial(kC, r) / polynomial(kD, r);
  } else {
    static constexpr double kE[] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                                    1.78482653991729133580e0,  2.96560571828504891230e-1,
                                    2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                    2.71155556874348757815e-5, 2.01033439929228813265e-7};
    static constexpr double kF[] = {1.0,
                                    5.99832206555887937690e-1,
                                    1.36929880922735805310e-1,
                                    1.48753612908506148525e-2,
                                    7.86869131145613259100e-4,
                                    1.84631831751005468180e-5,
                                    1.42151175831644588870e-7,
                                    2.04426310338993978564e-15};
    r -= 5.0;
    z = polynomial(kE, r) / polynomial(kF, r);
  }
  return q < 0 ? -z : z;
}

}  // namespace tokamak::fixed
