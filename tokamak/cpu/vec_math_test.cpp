#include "tokamak/cpu/vec_math.h"

#include <limits>

#include <gtest/gtest.h>

#include "tokamak/core/random.h"
#include "tokamak/cpu/philox.h"

namespace tokamak::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double ulps(float got, double want) {
  const auto near = static_cast<float>(std::abs(want));
  return std::abs(static_cast<double>(got) - want) / (std::nextafter(near, kInfinity) - near);
}

// The largest error of f against g over [low, high], in ulps.
template <class F, class G>
double worst(float low, float high, F&& f, G&& g) {
  double most = 0.0;
  for (int i = 0; i <= 200000; ++i) {
    const float x = low + (high - low) * static_cast<float>(i) / 200000.0F;
    most = std::max(most, ulps(f(x), g(static_cast<double>(x))));
  }
  return most;
}

TEST(VecMath, exp_is_good_to_two_ulps_and_keeps_its_limits) {
  const auto f = [](float x) { return vec::exp(x); };
  const auto g = [](double x) { return std::exp(x); };
  EXPECT_LT(worst(-87.0F, 88.7F, f, g), 2.0);
  EXPECT_LT(worst(-1e-3F, 1e-3F, f, g), 1.0);
  EXPECT_EQ(vec::exp(0.0F), 1.0F);
  EXPECT_EQ(vec::exp(-kInfinity), 0.0F);
  EXPECT_EQ(vec::exp(-1000.0F), 0.0F);
  EXPECT_EQ(vec::exp(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(vec::exp(std::nanf(""))));
  EXPECT_NEAR(static_cast<double>(vec::exp(-95.0F)), std::exp(-95.0), 2e-45);
}

TEST(VecMath, exp_held_is_exp_within_its_range) {
  for (float x = -87.0F; x <= 88.0F; x += 0.37F) EXPECT_EQ(vec::exp_held(x), vec::exp(x)) << x;
  EXPECT_GT(vec::exp_held(-kInfinity), 0.0F);
  EXPECT_LT(vec::exp_held(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(vec::exp_held(std::nanf(""))));
}

TEST(VecMath, sigmoid_and_normal_cdf_are_good_to_a_few_ulps) {
  const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  EXPECT_LT(worst(
                -80.0F, 80.0F, [](float x) { return vec::sigmoid(x); }, sigmoid),
            4.0);
  const auto cdf = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  const auto f = [](float x) { return vec::normal_cdf(x); };
  EXPECT_LT(worst(0.0F, 10.0F, f, cdf), 4.0);
  EXPECT_LT(worst(-2.0F, 0.0F, f, cdf), 10.0);
  EXPECT_LT(worst(-8.0F, 0.0F, f, cdf), 64.0);
}

TEST(VecMath, sincos_is_exact_to_the_last_bit_for_large_angles) {
  const auto sine = [](float x) { return vec::sincos(x).sin; };
  const auto cosine = [](float x) { return vec::sincos(x).cos; };
  for (const float range : {1.0F, 10.0F, 1e4F, 1e6F}) {
    EXPECT_LT(worst(-range, range, sine, [](double x) { return std::sin(x); }), 0.6) << range;
    EXPECT_LT(worst(-range, range, cosine, [](double x) { return std::cos(x); }), 0.6) << range;
  }
  EXPECT_EQ(vec::sincos(0.0F).sin, 0.0F);
  EXPECT_EQ(vec::sincos(0.0F).cos, 1.0F);
}

TEST(VecMath, sum_takes_every_element_once) {
  for (const int64_t n : {0, 1, 2, 31, 33, 1000}) {
    const auto total = vec::sum<float>(n, [](int64_t i) { return static_cast<float>(i + 1); });
    const int64_t wanted = n * (n + 1) / 2;
    EXPECT_EQ(total, static_cast<float>(wanted));
  }
}

TEST(Philox, blocks_are_the_generator_of_core) {
  PhiloxBlock words;
  const uint64_t low = 0xFFFFFFF0U;
  philox_block(0x123456789ABCDEFU, low, 77, words);
  for (uint64_t i = 0; i < words.size(); ++i)
    EXPECT_EQ(words[i], philox(0x123456789ABCDEFU, low + i / 4, 77)[i % 4]) << i;
}

}  // namespace
}  // namespace tokamak::cpu
