#include "tokamak/core/random.h"

#include <cmath>

#include <gtest/gtest.h>

namespace tokamak {
namespace {

// Known answers of Random123's kat_vectors for philox4x32-10.
TEST(Random, philox_known_answers) {
  const auto zero = philox(0, 0, 0);
  EXPECT_EQ(zero, (std::array<uint32_t, 4>{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}));
  const auto ones = philox(~0ULL, ~0ULL, ~0ULL);
  EXPECT_EQ(ones, (std::array<uint32_t, 4>{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}));
}

TEST(Random, quantile_inverts_the_distribution) {
  for (double p : {1e-12, 1e-6, 0.01, 0.074, 0.3, 0.5, 0.8, 0.95, 0.999999}) {
    EXPECT_NEAR(normal_cdf(normal_quantile(p)), p, 1e-14 + p * 1e-12) << p;
  }
}

TEST(Random, moments) {
  double sum = 0.0;
  double squares = 0.0;
  constexpr int kCount = 200'000;
  for (int i = 0; i < kCount; ++i) {
    const double z = TruncatedNormal{}(random_u32(7, stream_of("w"), i));
    sum += z;
    squares += z * z;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.01);
  EXPECT_NEAR(squares / kCount, 1.0, 0.01);
}

TEST(Random, truncation_keeps_its_bounds) {
  const auto cut = TruncatedNormal::between(-2.0, 2.0);
  for (int i = 0; i < 100'000; ++i) {
    const double z = cut(random_u32(0, 1, i));
    ASSERT_GE(z, -2.0);
    ASSERT_LE(z, 2.0);
  }
}

}  // namespace
}  // namespace tokamak
