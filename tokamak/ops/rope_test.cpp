#include "tokamak/ops/rope.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tokamak/ops/op_case.h"

namespace tokamak {
namespace {

constexpr RopeScaling kLlama31{.kind = RopeScaling::Kind::kLlama3};

TEST(RopeFrequencies, are_powers_of_theta) {
  const auto f = rope_frequencies(8, 10000.0, {});
  ASSERT_EQ(f.size(), 4U);
  EXPECT_DOUBLE_EQ(f[0], 1.0);
  EXPECT_DOUBLE_EQ(f[1], 0.1);
  EXPECT_DOUBLE_EQ(f[2], 0.01);
  EXPECT_DOUBLE_EQ(f[3], 0.001);
}

// Llama 3.1: head_dim 128, theta 500000; wavelengths under 2048 stay, above 8192 grow eightfold.
TEST(RopeFrequencies, llama3_scaling_keeps_high_and_divides_low_ones) {
  const auto plain = rope_frequencies(128, 500000.0, {});
  const auto scaled = rope_frequencies(128, 500000.0, kLlama31);
  for (size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2.0 * 3.141592653589793 / plain[i];
    if (wavelength < 2048.0) {
      EXPECT_EQ(scaled[i], plain[i]) << i;
    } else if (wavelength > 8192.0) {
      EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 8.0) << i;
    } else {
      const double smooth = (8192.0 / wavelength - 1.0) / 3.0;
      EXPECT_NEAR(scaled[i], plain[i] * ((1.0 - smooth) / 8.0 + smooth), 1e-15) << i;
      EXPECT_LT(scaled[i], plain[i]);
      EXPECT_GT(scaled[i], plain[i] / 8.0);
    }
  }
  EXPECT_EQ(scaled[28], plain[28]);
  EXPECT_DOUBLE_EQ(scaled[35], plain[35] / 8.0);
}

}  // namespace

template <>
OpCases cases_of<Rope>() {
  CasesOf<Rope> c;
  const auto good = [&](std::string name, const Rope& op, const Dims& x, Fill positions) {
    OpCase& k = c.good(std::move(name), op, {f32(x), i32({x[0], x[1]})});
    k.fill = {{}, std::move(positions)};
  };
  good("small", {}, {2, 3, 6, 8}, {.limit = 100});
  good("one token, one pair", {}, {1, 1, 1, 2}, {.values = {3}});
  good("odd number of pairs", {.theta = 500.0}, {6, 2, 3, 22}, {.limit = 5000});
  good("many pairs", {}, {1, 3, 2, 150}, {.limit = 5000});
  good("far positions", {.theta = 5e5, .scaling = kLlama31}, {1, 6, 2, 64}, {.limit = 131072});
  good("inverse", {.inverse = true}, {2, 3, 6, 8}, {.limit = 100});
  c.bad("odd head_dim", {}, {f32({2, 3, 4, 7}), i32({2, 3})});
  c.bad("positions of another shape", {}, {f32({2, 3, 4, 8}), i32({3, 2})});
  c.bad("theta of zero", {.theta = 0.0}, {f32({2, 3, 4, 8}), i32({2, 3})});
  return c.cases;
}

}  // namespace tokamak
