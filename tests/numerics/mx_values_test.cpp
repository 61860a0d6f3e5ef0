// Quantized values and scales of microscaling formats against torchao's, bit by bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

#include "tokamak/core/random.h"
#include "tokamak/ops/float8/float8.h"
#include "tokamak/ops/float8/mx.h"
#include "tokamak/ops/float8/scaled_matmul.h"

#include "tests/numerics/float8_layer.h"

namespace tokamak {
namespace {

const std::filesystem::path kMxFile =
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

TEST_P(MxMode, has_torchaos_values_and_scales) {
  Layer layer(kMxFile);
  const Value x = layer.read("x");
  const Dims dims = layer.graph().type(x).dims;
  const auto [quantized, inverse] = layer.quantize(
      x, {.grid = ScaleGrid::kMx, .rounds_up = std::string_view(GetParam()) == "rceil"});
  const StateId got_quantized = layer.keep(quantized);
  const StateId got_scales = layer.keep(inverse);
  layer.run();
  const std::string prefix = std::string("mxfp8_") + GetParam() + "/x.y.";
  const auto want_quantized = values_of<uint8_t>(layer.file(), prefix + "codes");
  const auto want_scales = values_of<uint8_t>(layer.file(), prefix + "scale");
  ASSERT_EQ(std::ssize(want_quantized), dims[0] * dims[1]);
  ASSERT_EQ(std::ssize(want_scales), dims[0] * dims[1] / kMxBlock);
  for (int64_t r = 0; r < dims[0]; ++r) {
    for (int64_t k = 0; k < dims[1]; ++k) {
      const int64_t i = r * dims[1] + k;
      const float got = layer.result(got_quantized)[i];
      EXPECT_EQ(std::bit_cast<uint32_t>(got),
                std::bit_cast<uint32_t>(decoded<E4M3>(want_quantized[i])))
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
  Layer layer(kMxFile);
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

}  // namespace
}  // namespace tokamak
