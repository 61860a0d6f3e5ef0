// Codes and scales of microscaling formats and of NVFP4 against torchao's, bit by bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

#include "tokamak/core/float8.h"
#include "tokamak/core/mx.h"
#include "tokamak/core/nvfp4.h"
#include "tokamak/core/random.h"
#include "tokamak/ops/float8/scaled_matmul.h"

#include "tests/numerics/float8_layer.h"

namespace tokamak {
namespace {

const std::filesystem::path kFile =
    std::filesystem::path(TOK_SOURCE_DIR) / "tests/oracles/float8/outliers_bf16_mx.safetensors";

template <class Format>
Format code_of(uint8_t bits) {
  Format code;
  code.bits = bits;
  return code;
}

template <class Format>
float decoded(uint8_t bits) {
  return static_cast<float>(code_of<Format>(bits));
}

class MxMode : public ::testing::TestWithParam<const char*> {};

TEST_P(MxMode, has_torchaos_codes_and_scales) {
  Layer layer(kFile);
  const Value x = layer.read("x");
  const Dims dims = layer.graph().type(x).dims;
  const auto [codes, inverse] = layer.quantize(
      x, {.grid = ScaleGrid::kMx, .rounds_up = std::string_view(GetParam()) == "rceil"});
  const StateId got_codes = layer.keep(codes);
  const StateId got_scales = layer.keep(inverse);
  layer.run();
  const std::string prefix = std::string("mxfp8_") + GetParam() + "/x.y.";
  const auto want_codes = values_of<uint8_t>(layer.file(), prefix + "codes");
  const auto want_scales = values_of<uint8_t>(layer.file(), prefix + "scale");
  ASSERT_EQ(std::ssize(want_codes), dims[0] * dims[1]);
  ASSERT_EQ(std::ssize(want_scales), dims[0] * dims[1] / kMxBlock);
  for (int64_t r = 0; r < dims[0]; ++r) {
    for (int64_t k = 0; k < dims[1]; ++k) {
      const int64_t i = r * dims[1] + k;
      const float got = layer.result(got_codes)[i];
      EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(decoded<E4M3>(want_codes[i])))
          << "at " << r << ", " << k;
      const int64_t at = scale_index(ScaleGrid::kMx, dims[0], dims[1], r, k);
      EXPECT_EQ(layer.result(got_scales)[at], want_scales[i / kMxBlock]) << "at " << r << ", " << k;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Torchao, MxMode, ::testing::Values("floor", "rceil"),
                         [](const auto& of) { return std::string(of.param); });

TEST(MxScale, is_the_power_of_two_of_its_mode) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto floor = [](float amax) { return int{mx_scale<E4M3>(amax, false).bits}; };
  const auto rceil = [](float amax) { return int{mx_scale<E4M3>(amax, true).bits}; };
  for (int e = -110; e <= 127; ++e) {
    const float amax = std::ldexp(1.75F, e);
    const float above = std::nextafter(amax, kInfinity);
    EXPECT_EQ(floor(amax), 127 + e - 8);
    EXPECT_EQ(floor(above), 127 + e - 8);
    EXPECT_EQ(rceil(amax), 127 + e - 8);
    EXPECT_EQ(rceil(above), 127 + e - 7) << "448 would saturate";
    EXPECT_EQ(int{mx_scale<E5M2>(amax, false).bits}, std::max(127 + e - 15, 0));
  }
  for (const float tiny : {0.0F, 0x1p-149F, 0x1p-126F, 0x1p-119F}) {
    EXPECT_EQ(floor(tiny), 0) << tiny;
    EXPECT_EQ(rceil(tiny), 0) << tiny;
  }
  for (const float bad : {kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(floor(bad), 255);
    EXPECT_EQ(rceil(bad), 255);
  }
  EXPECT_TRUE(std::isnan(static_cast<float>(E8M0{255})));
  EXPECT_TRUE(std::isnan(mx_multiplier({255})));
  EXPECT_EQ(static_cast<float>(E8M0{0}), 0x1p-127F);
  for (int bits = 0; bits < 254; ++bits) {
    const E8M0 scale{static_cast<uint8_t>(bits)};
    EXPECT_EQ(static_cast<float>(scale) * mx_multiplier(scale), 1.0F) << bits;
  }
}

// The layout of cuBLASLt's tiles: every scale has one place.
TEST(MxScale, has_a_place_of_its_own) {
  constexpr int64_t kRows = 300;
  constexpr int64_t kColumns = 352;
  const Dims dims = scale_dims(ScaleGrid::kMx, kRows, kColumns);
  EXPECT_EQ(dims, (Dims{3, 3, 512}));
  std::vector<int> taken(TensorType{.dims = dims}.numel());
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t k = 0; k < kColumns; k += kMxBlock)
      EXPECT_EQ(taken.at(scale_index(ScaleGrid::kMx, kRows, kColumns, r, k))++, 0);
  }
  const auto at = [](int64_t row, int64_t column) {
    return scale_index(ScaleGrid::kMx, kRows, kColumns, row, column);
  };
  EXPECT_EQ(at(0, 32), 1);
  EXPECT_EQ(at(1, 0), 16);
  EXPECT_EQ(at(32, 0), 4);
  EXPECT_EQ(at(0, 128), 512);
  EXPECT_EQ(at(128, 0), 3 * 512);
}

TEST(MxMatmul, is_near_the_matmul_of_the_values) {
  Layer layer(kFile);
  const auto x = layer.quantize(layer.read("x"), {.grid = ScaleGrid::kMx, .rounds_up = true});
  const auto w = layer.quantize(layer.read("w"), {.grid = ScaleGrid::kMx, .rounds_up = true});
  const StateId y = layer.keep(
      layer.graph().apply(ScaledMatmul{.a_grid = ScaleGrid::kMx, .b_grid = ScaleGrid::kMx},
                          {x.first, x.second, w.first, w.second}));
  layer.run();
  const auto bf16 = values_of<uint16_t>(layer.file(), "x");
  const auto weights = values_of<float>(layer.file(), "w");
  const int64_t n = 48;
  const int64_t k = 96;
  double diff = 0.0;
  double norm = 0.0;
  for (int64_t r = 0; r < std::ssize(bf16) / k; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      double want = 0.0;
      for (int64_t i = 0; i < k; ++i) {
        const float value = std::bit_cast<float>(uint32_t{bf16[r * k + i]} << 16U);
        want += static_cast<double>(value) * static_cast<double>(weights[c * k + i]);
      }
      diff += std::pow(static_cast<double>(layer.result(y)[r * n + c]) - want, 2);
      norm += want * want;
    }
  }
  EXPECT_GT(diff, 0.0);
  EXPECT_LT(std::sqrt(diff / norm), 0.06);  // E4M3 rounds by 1/16 at most
}

TEST(Nvfp4, rounds_to_the_nearest_code) {
  constexpr float kValues[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  for (uint8_t bits = 0; bits < 16; ++bits) {
    const float want = bits < 8 ? kValues[bits] : -kValues[bits - 8];
    EXPECT_EQ(decoded<E2M1>(bits), want);
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

TEST(Nvfp4, has_torchaos_codes_and_scales) {
  const SafetensorsFile file(kFile);
  std::vector<float> x;
  for (const uint16_t bits : values_of<uint16_t>(file, "x"))
    x.push_back(std::bit_cast<float>(uint32_t{bits} << 16U));
  const auto codes = values_of<uint8_t>(file, "nvfp4/x.y.codes");
  const auto scales = values_of<uint8_t>(file, "nvfp4/x.y.scale");
  ASSERT_EQ(codes.size(), x.size());
  ASSERT_EQ(std::ssize(scales) * kNvfp4Block, std::ssize(x));
  const auto greatest = [&](int64_t first, int64_t count) {
    float most = 0.0F;
    for (int64_t i = first; i < first + count; ++i) most = std::max(most, std::abs(x[i]));
    return most;
  };
  const float tensor_scale = nvfp4_tensor_scale(greatest(0, std::ssize(x)));
  EXPECT_EQ(tensor_scale, values_of<float>(file, "nvfp4/x.y.tensor_scale")[0]);
  for (int64_t block = 0; block < std::ssize(scales); ++block) {
    const int64_t first = block * kNvfp4Block;
    const E4M3 scale = nvfp4_block_scale(greatest(first, kNvfp4Block), tensor_scale);
    ASSERT_EQ(int{scale.bits}, int{scales[block]}) << block;
    for (int64_t i = first; i < first + kNvfp4Block; ++i)
      EXPECT_EQ(int{E2M1(x[i] * nvfp4_multiplier(tensor_scale, scale)).bits}, int{codes[i]}) << i;
  }
  EXPECT_EQ(E2M1(0.0F * nvfp4_multiplier(0.0F, nvfp4_block_scale(0.0F, 0.0F))).bits, 0);
}

}  // namespace
}  // namespace tokamak
