// Elementary functions that a compiler can vectorise: branch-free, no tables, no calls. The float
// versions are our own polynomials, good to 2 ulp; the double versions, which specify them, are the
// C library's.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace tokamak::cpu::vec {

namespace detail {

struct ExpParts {
  float fraction;  ///< e^x = fraction 2^exponent
  int32_t exponent;
};

inline ExpParts exp_parts(float x) {
  constexpr float kRound = 0x1.8p23F;
  constexpr float kLn2High = 0x1.62e400p-1F;
  constexpr float kLn2Low = 0x1.7f7d1cp-20F;
  const float shifted = x * 0x1.715476p0F + kRound;
  const float n = shifted - kRound;
  const float r = x - n * kLn2High - n * kLn2Low;
  float p = 1.3926184e-3F;
  p = p * r + 8.3631791e-3F;
  p = p * r + 4.1666555e-2F;
  p = p * r + 1.6666577e-1F;
  p = p * r + 0.5F;
  p = p * (r * r) + r + 1.0F;
  return {p, std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound)};
}

inline float power_of_two(int32_t exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23U);
}

inline float limit(float x, float low, float high) {
  const float raised = x < low ? low : x;
  return raised > high ? high : raised;
}

}  // namespace detail

/// e^x; 0 below -104, infinity above 88.8, NaN for NaN.
inline float exp(float x) {
  const auto [fraction, exponent] = detail::exp_parts(detail::limit(x, -105.0F, 89.0F));
  // 2^exponent is applied in two factors, so that neither leaves the exponent's range.
  const int32_t half = exponent >> 1;
  return fraction * detail::power_of_two(half) * detail::power_of_two(exponent - half);
}

inline double exp(double x) {
  return std::exp(x);
}

/// e^x held within [e^-87, e^88]: cheaper, never 0, infinite or subnormal.
inline float exp_held(float x) {
  const auto [fraction, exponent] = detail::exp_parts(detail::limit(x, -87.0F, 88.0F));
  return fraction * detail::power_of_two(exponent);
}

inline double exp_held(double x) {
  return std::exp(x);
}

/// 1 / (1 + e^-x); a float's result is never under 6e-39.
template <class A>
A sigmoid(A x) {
  return A{1} / (A{1} + exp_held(-x));
}

/// Returns tanh x near 0 by its series, for floats or vectors of them.
template <class V>
V tanh_series(V x) {
  const V x2 = x * x;
  V p = x2 * 3.592128037e-3F - 8.863235530e-3F;
  p = p * x2 + 2.186948854e-2F;
  p = p * x2 - 5.396825397e-2F;
  p = p * x2 + 1.333333333e-1F;
  p = p * x2 - 3.333333333e-1F;
  return p * x2 * x + x;
}

/// Returns tanh x, near 0 by its series, since the other form would lose digits there.
inline float tanh(float x) {
  const float magnitude = std::fabs(x);
  const float far = 1.0F - 2.0F / (exp_held(2.0F * magnitude) + 1.0F);
  const float near = tanh_series(x);
  return magnitude < 0.4F ? near : (x < 0.0F ? -far : far);
}

inline double tanh(double x) {
  return std::tanh(x);
}

/// P(Z < x) for standard normal Z: with z = |x| / sqrt(2), the tail is e^(-z^2) t Q(t) / 2, where
/// t = 1 / (1 + 0.4 z) and t Q(t) fits the scaled complementary error function.
inline float normal_cdf(float x) {
  const float z = std::fabs(x) * 0x1.6a09e6p-1F;
  const float t = 1.0F / (1.0F + 0.4F * z);
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
  const float tail = 0.5F * q * t * exp_held(-0.5F * x * x);
  return x < 0.0F ? tail : 1.0F - tail;
}

inline double normal_cdf(double x) {
  return 0.5 * std::erfc(-x * 0.70710678118654752);
}

template <class A>
struct SinCos {
  A sin, cos;
};

/// Sine and cosine of a float angle up to 10^8 in magnitude, exact to a float's last bit.
inline SinCos<float> sincos(float angle) {
  constexpr double kRound = 0x1.8p52;
  constexpr double kHalfPiHigh = 0x1.921fb54400000p0;
  constexpr double kHalfPiLow = 0x1.0b4611a626331p-34;
  const double x = static_cast<double>(angle);
  const double shifted = x * 0x1.45f306dc9c883p-1 + kRound;
  const double n = shifted - kRound;
  const double r = x - n * kHalfPiHigh - n * kHalfPiLow;
  const double r2 = r * r;
  double s = -1.0 / 39916800.0;
  s = s * r2 + 1.0 / 362880.0;
  s = s * r2 - 1.0 / 5040.0;
  s = s * r2 + 1.0 / 120.0;
  s = s * r2 - 1.0 / 6.0;
  s = s * r2 * r + r;
  double c = 1.0 / 479001600.0;
  c = c * r2 - 1.0 / 3628800.0;
  c = c * r2 + 1.0 / 40320.0;
  c = c * r2 - 1.0 / 720.0;
  c = c * r2 + 1.0 / 24.0;
  c = c * r2 - 0.5;
  c = c * r2 + 1.0;
  const auto quadrant = std::bit_cast<uint64_t>(shifted);
  const bool swap = (quadrant & 1U) != 0;
  const double sine = swap ? c : s;
  const double cosine = swap ? s : c;
  return {static_cast<float>((quadrant & 2U) != 0 ? -sine : sine),
          static_cast<float>(((quadrant + 1U) & 2U) != 0 ? -cosine : cosine)};
}

inline SinCos<double> sincos(double angle) {
  return {std::sin(angle), std::cos(angle)};
}

/// Calls f(i) for each i in [0, n), in lanes and in any order.
template <class F>
[[gnu::always_inline]] inline void loop(int64_t n, F f) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) f(i);
}

/// Sums f(i) over [0, n), in two chains of lanes; the order depends on n and the build only.
template <class A, class F>
[[gnu::always_inline]] inline A sum(int64_t n, F f) {
  const int64_t half = n / 2;
  A low{0};
  A high{0};
#pragma omp simd reduction(+ : low, high)
  for (int64_t i = 0; i < half; ++i) {
    low += f(i);
    high += f(i + half);
  }
  return n % 2 == 0 ? low + high : low + high + f(n - 1);
}

}  // namespace tokamak::cpu::vec
