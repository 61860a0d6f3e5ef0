// Codes and scales of NVFP4 against torchao's, bit by bit; stochastic rounding and the random
// Hadamard transform against their definitions.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

#include "tokamak/core/nvfp4.h"
#include "tokamak/ops/float8/scaled_matmul.h"

#include "tests/numerics/float8_layer.h"

namespace tokamak {
namespace {

const std::filesystem::path kNvfp4File =
    std::filesystem::path(TOK_SOURCE_DIR) / "tests/oracles/float8/outliers_bf16_mx.safetensors";

using Layout = Quantize::Layout;
using Sixteen = std::array<float, 16>;

E2M1 code_of(int bits) {
  E2M1 code;
  code.bits = static_cast<uint8_t>(bits);
  return code;
}

// Code i of bytes that an op yielded as floats.
int code_at(const std::vector<float>& bytes, int64_t i) {
  return static_cast<int>(bytes.at(i / 2)) >> (i % 2 * 4) & 15;
}

float tensor_scale_of(const std::vector<float>& scales) {
  uint32_t bits = 0;
  for (size_t i = 0; i < 4; ++i)
    bits |= static_cast<uint32_t>(scales.at(scales.size() - 16 + i)) << (8 * i);
  return std::bit_cast<float>(bits);
}

TEST(Nvfp4, rounds_to_the_nearest_code) {
  constexpr float kValues[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  for (int bits = 0; bits < 16; ++bits) {
    const float want = bits < 8 ? kValues[bits] : -kValues[bits - 8];
    EXPECT_EQ(static_cast<float>(code_of(bits)), want);
    EXPECT_EQ(E2M1(want).bits, bits);
  }
  constexpr std::pair<float, uint8_t> kTies[] = {{0.25F, 0}, {0.75F, 2}, {1.25F, 2}, {1.75F, 4},
                                                 {2.5F, 4},  {3.5F, 6},  {5.0F, 6}};
  for (const auto& [x, code] : kTies) {
    EXPECT_EQ(E2M1(x).bits, code) << x;
    EXPECT_EQ(E2M1(-x).bits, code | 8) << x;
  }
  EXPECT_EQ(E2M1(1e30F).bits, 7);
  EXPECT_EQ(E2M1(-std::numeric_limits<float>::infinity()).bits, 15);
  EXPECT_EQ(E2M1(std::numeric_limits<float>::quiet_NaN()).bits, 7);
  for (uint32_t i = 0; i < 1000; ++i) {
    const auto x = static_cast<float>(6.0 * to_uniform(random_u32(1, 2, i)));
    const float error = std::abs(x - static_cast<float>(E2M1(x)));
    for (const float other : kValues) EXPECT_LE(error, std::abs(x - other)) << x;
  }
}

TEST(Nvfp4, rounds_stochastically_to_the_mean) {
  for (int bits = 0; bits < 16; ++bits) {
    for (const uint32_t word : {0U, 1U << 31U, UINT32_MAX})
      EXPECT_EQ(E2M1::stochastic(static_cast<float>(code_of(bits)), word).bits, bits);
  }
  constexpr int kWords = 4096;
  for (const float x : {0.1F, -0.3F, 0.9F, 1.75F, -2.2F, 3.9F, 5.5F}) {
    double sum = 0.0;
    for (uint32_t i = 0; i < kWords; ++i) {
      const auto value = static_cast<float>(E2M1::stochastic(x, random_u32(3, 4, i)));
      EXPECT_LE(std::abs(value - x), std::abs(x) < 2.0F ? 0.5F : std::abs(x) < 4.0F ? 1.0F : 2.0F);
      sum += static_cast<double>(value);
    }
    EXPECT_NEAR(sum / kWords, static_cast<double>(x), 4.0 / std::sqrt(kWords)) << x;
  }
  EXPECT_EQ(E2M1::stochastic(1e30F, UINT32_MAX).bits, 7);
  EXPECT_EQ(E2M1::stochastic(-7.0F, 0).bits, 15);
}

TEST(Nvfp4, turns_by_sylvesters_matrix) {
  constexpr int kSigns[] = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};
  const auto drawn = [](uint64_t stream) {
    Sixteen v{};
    for (uint32_t i = 0; i < 16; ++i)
      v[i] = static_cast<float>(to_uniform(random_u32(5, stream, i)) - 0.5);
    return v;
  };
  const auto turned = [](Sixteen v) {
    hadamard_transform([&](uint32_t i) -> float& { return v[i]; });
    return v;
  };
  const Sixteen a = drawn(1);
  const Sixteen b = drawn(2);
  const Sixteen got = turned(a);
  for (uint32_t j = 0; j < 16; ++j) {
    double want = 0.0;
    for (uint32_t i = 0; i < 16; ++i)
      want +=
          (std::popcount(i & j) % 2 == 0 ? 0.25 : -0.25) * kSigns[i] * static_cast<double>(a[i]);
    EXPECT_NEAR(static_cast<double>(got[j]), want, 1e-6);
  }
  const auto dot = [](const Sixteen& x, const Sixteen& y) {
    double sum = 0.0;
    for (size_t i = 0; i < 16; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
    return sum;
  };
  EXPECT_NEAR(dot(got, turned(b)), dot(a, b), 1e-6);
}

TEST(Nvfp4, has_torchaos_codes_and_scales) {
  Layer layer(kNvfp4File);
  const Value x = layer.read("x");
  const int64_t columns = layer.graph().type(x).dims[1];
  const int64_t rows = layer.graph().type(x).dims[0];
  const auto [codes, inverse] = layer.quantize(x, {.grid = ScaleGrid::kNvfp4});
  const StateId got_codes = layer.keep(codes);
  const StateId got_scales = layer.keep(inverse);
  layer.run();
  const auto want_codes = values_of<uint8_t>(layer.file(), "nvfp4/x.y.codes");
  const auto want_scales = values_of<uint8_t>(layer.file(), "nvfp4/x.y.scale");
  ASSERT_EQ(std::ssize(want_codes), rows * columns);
  ASSERT_EQ(std::ssize(want_scales), rows * columns / kNvfp4Block);
  EXPECT_EQ(tensor_scale_of(layer.result(got_scales)),
            values_of<float>(layer.file(), "nvfp4/x.y.tensor_scale")[0]);
  for (int64_t i = 0; i < rows * columns; ++i) {
    EXPECT_EQ(code_at(layer.result(got_codes), i), int{want_codes[i]}) << i;
    const int64_t at = scale_index(ScaleGrid::kNvfp4, rows, columns, i / columns, i % columns);
    EXPECT_EQ(layer.result(got_scales)[at], want_scales[i / kNvfp4Block]) << i;
  }
}

TEST(Nvfp4, shares_scales_of_a_weight_among_16_x_16) {
  Layer layer(kNvfp4File);
  const Value w = layer.read("w");
  const int64_t rows = layer.graph().type(w).dims[0];
  const int64_t columns = layer.graph().type(w).dims[1];
  const auto keep = [&](Layout layout) {
    const auto [codes, scales] =
        layer.quantize(w, {.grid = ScaleGrid::kNvfp4Blocks, .layout = layout});
    return std::pair(layer.keep(codes), layer.keep(scales));
  };
  const auto lying = keep(Layout::kRows);
  const auto across = keep(Layout::kTransposed);
  layer.run();
  const int64_t padded = padded_tokens(rows, ScaleGrid::kNvfp4Blocks);
  const auto values = values_of<float>(layer.file(), "w");
  const float of_tensor = tensor_scale_of(layer.result(lying.second));
  const auto scale_at = [&](StateId id, int64_t all, int64_t wide, int64_t r, int64_t c) {
    return layer.result(id)[scale_index(ScaleGrid::kNvfp4Blocks, all, wide, r, c)];
  };
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      EXPECT_EQ(code_at(layer.result(lying.first), r * columns + c),
                code_at(layer.result(across.first), c * padded + r));
      float most = 0.0F;
      for (int64_t i = 0; i < 256; ++i) {
        const int64_t at = (r / 16 * 16 + i / 16) * columns + c / 16 * 16 + i % 16;
        most = std::max(most, std::abs(values[at]));
      }
      const int want = nvfp4_block_scale(most, of_tensor).bits;
      EXPECT_EQ(scale_at(lying.second, rows, columns, r, c), want);
      EXPECT_EQ(scale_at(across.second, columns, padded, c, r), want);
    }
  }
}

// The layout of cuBLASLt's tiles: every scale has one place.
TEST(Nvfp4, has_a_place_for_each_scale) {
  constexpr int64_t kRows = 300;
  constexpr int64_t kColumns = 160;
  const Dims dims = scale_dims(ScaleGrid::kNvfp4, kRows, kColumns);
  EXPECT_EQ(dims, (Dims{3 * 3 * 512 + 16}));
  std::vector<int> taken(dims[0]);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t k = 0; k < kColumns; k += kNvfp4Block)
      EXPECT_EQ(taken.at(scale_index(ScaleGrid::kNvfp4, kRows, kColumns, r, k))++, 0);
  }
  const auto at = [](int64_t row, int64_t column) {
    return scale_index(ScaleGrid::kNvfp4, kRows, kColumns, row, column);
  };
  EXPECT_EQ(at(0, 16), 1);
  EXPECT_EQ(at(1, 0), 16);
  EXPECT_EQ(at(32, 0), 4);
  EXPECT_EQ(at(0, 64), 512);
  EXPECT_EQ(at(128, 0), 3 * 512);
  EXPECT_EQ(tensor_scale_index(kRows, kColumns), 9 * 512);
}

TEST(Nvfp4, stays_finite_where_values_are_tiny) {
  for (const float amax : {0.0F, 1e-45F, 1e-38F, 1e-30F}) {
    const float of_tensor = nvfp4_tensor_scale(amax);
    const auto scale = static_cast<float>(nvfp4_block_scale(amax, of_tensor));
    const float multiplier = nvfp4_multiplier(of_tensor, scale);
    EXPECT_TRUE(std::isfinite(multiplier)) << amax;
    EXPECT_EQ(E2M1(0.0F * multiplier).bits, 0) << amax;
    const float back = static_cast<float>(E2M1(amax * multiplier)) * scale * of_tensor;
    EXPECT_NEAR(back, amax, std::max(amax / 4, 1e-33F));
  }
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const float of_tensor = nvfp4_tensor_scale(bad);
    const auto scale = static_cast<float>(nvfp4_block_scale(bad, of_tensor));
    EXPECT_FALSE(std::isfinite(scale * of_tensor)) << bad;
  }
}

double relative_error(const std::vector<float>& got, const std::vector<double>& want) {
  double diff = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    diff += std::pow(static_cast<double>(got.at(i)) - want[i], 2);
    norm += want[i] * want[i];
  }
  return std::sqrt(diff / norm);
}

TEST(Nvfp4, matmuls_are_near_those_of_the_values) {
  Layer layer(kNvfp4File);
  const Value x = layer.read("x");
  const Value w = layer.read("w");
  const Value g = layer.read("g");
  const auto codes = [&](Value v, ScaleGrid grid, Layout layout, bool hadamard = false) {
    return layer.quantize(v, {.grid = grid, .layout = layout, .hadamard = hadamard});
  };
  const auto multiply = [&](const auto& a, const auto& b, ScaleGrid of_b) {
    return layer.keep(layer.graph().apply(ScaledMatmul{.a_grid = ScaleGrid::kNvfp4, .b_grid = of_b},
                                          {a.first, a.second, b.first, b.second}));
  };
  using enum ScaleGrid;
  // This w has a row of outliers, which 16 x 16 would let hide its neighbours.
  const StateId y =
      multiply(codes(x, kNvfp4, Layout::kRows), codes(w, kNvfp4, Layout::kRows), kNvfp4);
  const StateId plain = multiply(codes(g, kNvfp4, Layout::kTransposed),
                                 codes(x, kNvfp4, Layout::kTransposed), kNvfp4);
  const StateId turned = multiply(codes(g, kNvfp4, Layout::kTransposed, true),
                                  codes(x, kNvfp4, Layout::kTransposed, true), kNvfp4);
  layer.run();
  const auto wide = [](const std::vector<uint16_t>& bits) {
    std::vector<double> values;
    values.reserve(bits.size());
    for (const uint16_t b : bits)
      values.push_back(static_cast<double>(std::bit_cast<float>(uint32_t{b} << 16U)));
    return values;
  };
  const auto xs = wide(values_of<uint16_t>(layer.file(), "x"));
  const auto gs = wide(values_of<uint16_t>(layer.file(), "g"));
  const auto ws = values_of<float>(layer.file(), "w");
  constexpr int64_t kM = 41;
  constexpr int64_t kN = 48;
  constexpr int64_t kK = 96;
  std::vector<double> want_y(kM * kN);
  std::vector<double> want_dw(kN * kK);
  for (int64_t m = 0; m < kM; ++m) {
    for (int64_t n = 0; n < kN; ++n) {
      for (int64_t k = 0; k < kK; ++k) {
        want_y[m * kN + n] += xs[m * kK + k] * static_cast<double>(ws[n * kK + k]);
        want_dw[n * kK + k] += gs[m * kN + n] * xs[m * kK + k];
      }
    }
  }
  // E2M1 rounds by a quarter at most, and turning bounds what outliers take from their neighbours.
  for (const double error :
       {relative_error(layer.result(y), want_y), relative_error(layer.result(plain), want_dw),
        relative_error(layer.result(turned), want_dw)}) {
    EXPECT_GT(error, 0.0);
    EXPECT_LT(error, 0.2);
  }
}

}  // namespace
}  // namespace tokamak
