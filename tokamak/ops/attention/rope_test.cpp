#include "tokamak/ops/attention/rope.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tokamak/ops/test_op_case.h"

namespace tokamak {
namespace {

const RopeScaling kLlama31{.kind = RopeScaling::Kind::kLlama3};

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
  const auto good = [&](const std::string& name, const Rope& op, const Dims& x, Fill positions) {
    OpCase& k = c.good(name, op, {f32(x), i32({x[0], x[1]})});
    k.fill = {{}, std::move(positions)};
    if (op.num_turned == 0) return;
    k.writes_part = true;
    k.flops = 3.0 * static_cast<double>(x[0] * x[1] * op.num_turned * x[3]);
  };
  good("small", {}, {2, 3, 6, 8}, {.limit = 100});
  good("one token, one pair", {}, {1, 1, 1, 2}, {.values = {3}});
  good("odd number of pairs", {.theta = 500.0}, {6, 2, 3, 22}, {.limit = 5000});
  good("many pairs", {}, {1, 3, 2, 150}, {.limit = 5000});
  good("far positions", {.theta = 5e5, .scaling = kLlama31}, {1, 6, 2, 64}, {.limit = 131072});
  using Kind = RopeScaling::Kind;
  const RopeScaling yarn{.kind = Kind::kYarn, .factor = 4.0, .attention_factor = 1.3};
  good("yarn", {.scaling = yarn}, {1, 6, 2, 64}, {.limit = 131072});
  good("yarn, inverse", {.scaling = yarn, .inverse = true}, {2, 3, 2, 22}, {.limit = 100});
  good("longrope",
       {.scaling = {.kind = Kind::kLongRope,
                    .attention_factor = 1.1,
                    .short_factor = {1.0, 2.0},
                    .long_factor = {1.0, 4.0},
                    .length = 9000}},
       {1, 6, 2, 4}, {.limit = 9000});
  good("inverse", {.inverse = true}, {2, 3, 6, 8}, {.limit = 100});
  good("queries and keys of packed heads", {.num_turned = 5}, {2, 7, 6, 64}, {.limit = 100});
  good("odd pairs of some heads", {.inverse = true, .num_turned = 1}, {2, 3, 3, 22},
       {.limit = 5000});
  good("many pairs of some heads", {.num_turned = 3}, {1, 3, 4, 150}, {.limit = 5000});
  c.bad("odd head_dim", {}, {f32({2, 3, 4, 7}), i32({2, 3})});
  c.bad("positions of another shape", {}, {f32({2, 3, 4, 8}), i32({3, 2})});
  c.bad("more turned than there are", {.num_turned = 5}, {f32({2, 3, 4, 8}), i32({2, 3})});
  c.bad("longrope with too few factors",
        {.scaling = {.kind = Kind::kLongRope, .short_factor = {1.0}, .long_factor = {1.0}}},
        {f32({2, 3, 4, 8}), i32({2, 3})});
  c.bad("a factor of zero", {.scaling = {.kind = Kind::kLinear, .factor = 0.0}},
        {f32({2, 3, 4, 8}), i32({2, 3})});
  c.bad("theta of zero", {.theta = 0.0}, {f32({2, 3, 4, 8}), i32({2, 3})});
  return c.cases;
}

template <>
OpCases cases_of<RopeConcat>() {
  CasesOf<RopeConcat> c;
  // Tokens, heads of each part, head_dim.
  const auto good = [&](const std::string& name, RopeConcat op, const Dims& tokens,
                        const std::vector<int64_t>& heads, int64_t head_dim) {
    Types in;
    double turned = 0.0;
    for (size_t i = 0; i < heads.size(); ++i) {
      in.push_back(f32({tokens[0], tokens[1], heads[i], head_dim}));
      if (static_cast<int>(i) < op.num_turned) turned += static_cast<double>(in[i].numel());
    }
    in.push_back(i32(tokens));
    OpCase& k = c.good(name, op, in);
    k.fill.resize(heads.size());
    k.fill.push_back({.limit = 1000});
    k.flops = 3.0 * turned;
    k.check_gradient = false;
  };
  const Rope inverse{.inverse = true};
  good("queries, keys and values", {.rope = inverse, .num_turned = 2}, {2, 5}, {6, 2, 2}, 8);
  good("whole words", {.rope = inverse, .num_turned = 2}, {3, 7}, {4, 1, 1}, 64);
  good("odd number of pairs", {.num_turned = 2}, {2, 3}, {3, 1, 1}, 22);
  good("many pairs", {.num_turned = 1}, {1, 3}, {2, 1}, 300);
  good("nothing turned", {}, {2, 3}, {2, 2, 2, 1}, 8);
  good("all turned", {.num_turned = 1}, {2, 3}, {5}, 8);
  good("no key heads", {.num_turned = 2}, {2, 3}, {2, 0, 1}, 8);
  c.bad("head_dims differ", {.num_turned = 1}, {f32({2, 3, 4, 8}), f32({2, 3, 4, 6}), i32({2, 3})});
  c.bad("tokens differ", {.num_turned = 1}, {f32({2, 3, 4, 8}), f32({2, 4, 4, 8}), i32({2, 3})});
  c.bad("more turned than given", {.num_turned = 2}, {f32({2, 3, 4, 8}), i32({2, 3})});
  return c.cases;
}

}  // namespace tokamak
