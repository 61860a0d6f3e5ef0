// Quantized values, scales and matmuls of 8-bit floats against torchao's, bit by bit where they are
// quantized values or scales.
#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include <gtest/gtest.h>

#include "tokamak/ops/float8/float8.h"
#include "tokamak/ops/float8/scaled_matmul.h"
#include "tokamak/parallel/float8/float8_recipe.h"

#include "tests/numerics/float8_layer.h"

namespace tokamak {
namespace {

const std::filesystem::path kFolder =
    std::filesystem::path(TOK_SOURCE_DIR) / "tests/oracles/float8";

bool is_nan(uint8_t bits, DType format) {
  return (bits & 0x7F) > (format == DType::kE4M3 ? 0x7E : 0x7C);
}

template <class Format>
void expect_casts(const std::string& prefix) {
  const SafetensorsFile file(kFolder / "casts.safetensors");
  const DType format = kDTypeOf<Format>;
  const auto expect_bits = [&](float x, uint8_t want) {
    const uint8_t got = Format(x).bits;
    EXPECT_TRUE(got == want || (is_nan(got, format) && is_nan(want, format)))
        << x << " became " << int{got} << ", wanted " << int{want};
  };
  const auto of_bf16 = values_of<uint8_t>(file, prefix + ".of_bf16");
  ASSERT_EQ(of_bf16.size(), 65536U);
  for (uint32_t bits = 0; bits < of_bf16.size(); ++bits)
    expect_bits(std::bit_cast<float>(bits << 16U), of_bf16[bits]);
  const auto probes = values_of<float>(file, prefix + ".probes");
  const auto of_probes = values_of<uint8_t>(file, prefix + ".of_probes");
  for (size_t i = 0; i < probes.size(); ++i) expect_bits(probes[i], of_probes[i]);
  const auto decoded = values_of<float>(file, prefix + ".values");
  for (size_t i = 0; i < decoded.size(); ++i) {
    Format code;
    code.bits = static_cast<uint8_t>(i);
    const auto got = static_cast<float>(code);
    EXPECT_TRUE(got == decoded[i] || (std::isnan(got) && std::isnan(decoded[i]))) << i;
  }
  const auto amax = values_of<float>(file, prefix + ".amax");
  for (const bool power_of_two : {false, true}) {
    const auto want = values_of<float>(file, prefix + (power_of_two ? ".scale_pow2" : ".scale"));
    ASSERT_EQ(want.size(), amax.size());
    for (size_t i = 0; i < amax.size(); ++i) {
      const float got = float8_scale(amax[i], Format::kLargest, power_of_two);
      EXPECT_TRUE(std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(want[i]) ||
                  (std::isnan(got) && std::isnan(want[i])))
          << amax[i] << " gives " << got << ", wanted " << want[i];
    }
  }
}

TEST(Float8Values, e4m3_casts_equal_torchaos) {
  expect_casts<E4M3>("e4m3");
}

TEST(Float8Values, e5m2_casts_equal_torchaos) {
  expect_casts<E5M2>("e5m2");
}

struct LayerCase {
  const char* file;
  const char* name;    ///< of the recipe in the file
  const char* recipe;  ///< ours
  bool power_of_two = false;
  DType gradient = DType::kE5M2;
  DType rounds_to = DType::kF32;  ///< weights
};

// NOLINTNEXTLINE(readability-identifier-naming)
void PrintTo(const LayerCase& c, std::ostream* os) {
  *os << c.file << " " << c.name;
}

class Float8Layer : public ::testing::TestWithParam<LayerCase> {
 protected:
  struct Operand {
    std::string name;  ///< "x.y": x of y
    StateId quantized;
    StateId inverse;
    DType format;
    ScaleGrid grid;
    bool transposed;
    int64_t rows, columns;  ///< of the operand
  };

  // Quantized values as they lie in the file, which has them by rows of the operand. Returns how
  // many it has.
  int64_t expect_equal(const Layer& layer, const Operand& o) const {
    const std::string prefix = std::string(GetParam().name) + "/" + o.name;
    const auto quantized = values_of<uint8_t>(layer.file(), prefix + ".codes");
    if (quantized.empty()) return 0;  // those of an earlier operand
    const auto scales = values_of<float>(layer.file(), prefix + ".scale");
    const auto& got = layer.result(o.quantized);
    const auto& inverse = layer.result(o.inverse);
    const int64_t width = o.transposed ? padded_tokens(o.rows) : o.columns;
    const int64_t height = o.transposed ? o.columns : o.rows;
    const auto scale_columns = [&] {
      const int64_t n = std::ssize(scales);
      if (o.grid == ScaleGrid::kTensor || o.grid == ScaleGrid::kRows)
        return o.transposed && o.grid == ScaleGrid::kRows ? o.columns : int64_t{1};
      if (o.grid == ScaleGrid::kSegments) return o.transposed ? o.columns : n / o.rows;
      return (o.columns + kScaleBlock - 1) / kScaleBlock;
    }();
    for (int64_t r = 0; r < o.rows; ++r) {
      for (int64_t k = 0; k < o.columns; ++k) {
        const int64_t at = o.transposed ? k * width + r : r * width + k;
        const uint8_t want = quantized[r * o.columns + k];
        float decoded = 0.0F;
        if (o.format == DType::kE4M3) {
          E4M3 code;
          code.bits = want;
          decoded = static_cast<float>(code);
        } else {
          E5M2 code;
          code.bits = want;
          decoded = static_cast<float>(code);
        }
        EXPECT_EQ(got[at], decoded) << prefix << " at " << r << ", " << k;
        int64_t scale = 0;
        const int64_t step =
            o.grid == ScaleGrid::kTensor || o.grid == ScaleGrid::kRows ? 1 : kScaleBlock;
        if (o.grid == ScaleGrid::kRows) scale = o.transposed ? k : r;
        if (o.grid == ScaleGrid::kSegments)
          scale = o.transposed ? r / step * scale_columns + k : r * scale_columns + k / step;
        if (o.grid == ScaleGrid::kBlocks) scale = r / step * scale_columns + k / step;
        const int64_t mine = o.transposed ? scale_index(o.grid, height, width, k, r)
                                          : scale_index(o.grid, height, width, r, k);
        EXPECT_EQ(inverse[mine], 1.0F / scales[scale]) << prefix << " at " << r << ", " << k;
      }
    }
    return std::ssize(quantized);
  }

  static double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
    double diff = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < want.size(); ++i) {
      diff += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
      norm += std::pow(static_cast<double>(want[i]), 2);
    }
    return norm == 0.0 ? diff : std::sqrt(diff / norm);
  }
};

TEST_P(Float8Layer, has_torchaos_values_scales_and_matmuls) {
  const LayerCase& c = GetParam();
  const Float8Recipe recipe = *find_float8_recipe(c.recipe);
  Layer layer(kFolder / (std::string(c.file) + ".safetensors"));
  const Value x = layer.read("x");
  const Value w = layer.read("w");
  const Value g = layer.read("g");
  std::vector<Operand> operands;
  const auto add = [&](const char* name, Value v, ScaleGrid grid, bool transposed, DType format,
                       DType rounds_to) {
    const auto [quantized, inverse] = layer.quantize(
        v, {.format = format,
            .grid = grid,
            .layout = transposed ? Quantize::Layout::kTransposed : Quantize::Layout::kRows,
            .power_of_two = c.power_of_two,
            .rounds_to = rounds_to});
    const Dims& dims = layer.graph().type(v).dims;
    operands.push_back({.name = name,
                        .quantized = layer.keep(quantized),
                        .inverse = layer.keep(inverse),
                        .format = format,
                        .grid = grid,
                        .transposed = transposed,
                        .rows = dims[0],
                        .columns = dims[1]});
    return std::vector<Value>{quantized, inverse};
  };
  const auto multiply = [&](ScaleGrid a_grid, ScaleGrid b_grid, const std::vector<Value>& a,
                            const std::vector<Value>& b) {
    return layer.keep(layer.graph().apply(ScaledMatmul{.a_grid = a_grid, .b_grid = b_grid},
                                          {a[0], a[1], b[0], b[1]}));
  };
  const DType e4m3 = DType::kE4M3;
  const DType plain = DType::kF32;
  const StateId y =
      multiply(recipe.x_of_y, recipe.w_of_y, add("x.y", x, recipe.x_of_y, false, e4m3, plain),
               add("w.y", w, recipe.w_of_y, false, e4m3, c.rounds_to));
  const StateId dx = multiply(recipe.g_of_dx, recipe.w_of_dx,
                              add("g.dx", g, recipe.g_of_dx, false, c.gradient, plain),
                              add("w.dx", w, recipe.w_of_dx, true, e4m3, c.rounds_to));
  std::optional<StateId> dw;
  if (recipe.has_dw) {
    dw = multiply(recipe.of_dw, recipe.of_dw, add("g.dw", g, recipe.of_dw, true, c.gradient, plain),
                  add("x.dw", x, recipe.of_dw, true, e4m3, plain));
  }
  layer.run();
  int64_t compared = 0;
  for (const Operand& o : operands) compared += expect_equal(layer, o);
  EXPECT_GT(compared, 0);
  const auto expect_near = [&](const char* name, StateId got) {
    const auto want = values_of<float>(layer.file(), std::string(c.name) + "/" + name);
    if (want.empty()) return;  // the file has quantized values alone
    EXPECT_LT(relative_error(layer.result(got), want), 2e-6) << name;
  };
  expect_near("y", y);
  expect_near("dx", dx);
  if (dw) expect_near("dw", *dw);
}

constexpr DType kE4M3 = DType::kE4M3;

INSTANTIATE_TEST_SUITE_P(
    Torchao, Float8Layer,
    ::testing::Values(
        LayerCase{"odd_f32", "tensorwise", "tensorwise"},
        LayerCase{"odd_f32", "tensorwise_pow2", "tensorwise", true},
        LayerCase{"odd_f32", "tensorwise_e4m3", "tensorwise", false, kE4M3},
        LayerCase{"odd_f32", "tensorwise@bf16", "tensorwise", false, DType::kE5M2, DType::kBF16},
        LayerCase{"odd_f32", "rowwise", "rowwise", true, kE4M3},
        LayerCase{"odd_f32", "rowwise_with_gw_hp", "rowwise_with_gw_hp", true, kE4M3},
        LayerCase{"odd_bf16", "tensorwise", "tensorwise"},
        LayerCase{"odd_bf16", "rowwise", "rowwise", true, kE4M3},
        LayerCase{"odd_bf16", "rowwise_with_gw_hp", "rowwise_with_gw_hp", true, kE4M3},
        LayerCase{"blocks_bf16", "blockwise", "blockwise", false, kE4M3},
        LayerCase{"blocks_bf16", "blockwise_pow2", "blockwise", true, kE4M3},
        LayerCase{"tiny_f32", "tensorwise", "tensorwise"},
        LayerCase{"tiny_f32", "rowwise", "rowwise", true, kE4M3},
        LayerCase{"zero_bf16", "tensorwise", "tensorwise"},
        LayerCase{"zero_bf16", "rowwise", "rowwise", true, kE4M3}),
    [](const auto& of) {
      std::string name = std::string(of.param.file) + "_" + of.param.name;
      std::replace(name.begin(), name.end(), '@', '_');
      return name;
    });

}  // namespace
}  // namespace tokamak
