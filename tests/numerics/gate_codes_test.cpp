// Codes of gate and up, and gradients of what they represent, against PyTorch's.
#include "tokamak/ops/elementwise/gate_codes.h"

#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "tokamak/core/float8.h"
#include "tokamak/ops/elementwise/swiglu.h"
#include "tokamak/ops/layout/reshape.h"

#include "tests/numerics/float8_layer.h"

namespace tokamak {
namespace {

const std::filesystem::path kGateFile =
    std::filesystem::path(TOK_SOURCE_DIR) / "tests/oracles/float8/gate_codes.safetensors";

double relative_distance(const std::vector<float>& got, const std::vector<float>& want) {
  double apart = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    apart += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2.0);
    norm += std::pow(static_cast<double>(want[i]), 2.0);
  }
  return std::sqrt(apart / norm);
}

TEST(GateCodes, are_PyTorchs_and_so_are_their_gradients) {
  Layer layer(kGateFile);
  Graph& g = layer.graph();
  const Value gate = layer.read("gate");
  const Value up = layer.read("up");
  const Value dy = layer.read("dy");
  const std::vector<Value> forward = g.add(Swiglu{.makes_codes = true}, {gate, up});
  const std::vector<Value> grads = g.add(SwigluGrad{.emits_y = true, .gates = GateInputs::kCodes},
                                         {forward[1], forward[2], forward[3], forward[4], dy});
  const Value plain = g.apply(Swiglu{}, {gate, up});
  std::vector<StateId> kept;
  for (const Value v : forward) kept.push_back(layer.keep(v));
  for (const Value v : grads) kept.push_back(layer.keep(v));
  kept.push_back(layer.keep(plain));
  layer.run();
  EXPECT_EQ(layer.result(kept[0]), layer.result(kept.back())) << "the forward";
  size_t next = 1;
  for (const char* name : {"gate", "up"}) {
    const auto codes = values_of<uint8_t>(layer.file(), std::string(name) + ".codes");
    const auto scales = values_of<uint8_t>(layer.file(), std::string(name) + ".scale");
    const std::vector<float>& got = layer.result(kept[next++]);
    ASSERT_EQ(got.size(), codes.size());
    for (size_t i = 0; i < codes.size(); ++i) {
      E4M3 code;
      code.bits = codes[i];
      EXPECT_EQ(got[i], static_cast<float>(code)) << name << " " << i;
    }
    const std::vector<float>& bytes = layer.result(kept[next++]);
    EXPECT_EQ(bytes, std::vector<float>(scales.begin(), scales.end())) << name;
  }
  for (const char* name : {"dgate", "dup", "y"}) {
    const std::vector<float>& got = layer.result(kept[next++]);
    const auto want = values_of<float>(layer.file(), name);
    ASSERT_EQ(got.size(), want.size());
    EXPECT_LT(relative_distance(got, want), 2e-6) << name;
  }
}

// Rows of packed gates are those of gate and of up.
TEST(GateCodes, are_the_same_packed_and_apart) {
  Layer layer(kGateFile);
  Graph& g = layer.graph();
  const Value gate = layer.read("gate");
  const Dims dims = g.type(gate).dims;
  const int64_t F = dims[1];
  const int64_t S = gate_scales(F);
  // Every second row of the file's gate as gate, and the rows between as up.
  const Value packed = g.apply(Reshape{.dims = {dims[0] / 2, 2 * F}}, {gate});
  const std::vector<Value> of_packed = g.add(Swiglu{.packed = true, .makes_codes = true}, {packed});
  const std::vector<Value> of_rows = g.add(Swiglu{.makes_codes = true}, {gate, gate});
  const StateId packed_codes = layer.keep(of_packed[1]);
  const StateId packed_scales = layer.keep(of_packed[2]);
  const StateId codes = layer.keep(of_rows[1]);
  const StateId scales = layer.keep(of_rows[2]);
  EXPECT_EQ(g.type(of_packed[2]).dims, (Dims{dims[0] / 2, 2 * S}));
  layer.run();
  EXPECT_EQ(layer.result(packed_codes), layer.result(codes));
  EXPECT_EQ(layer.result(packed_scales), layer.result(scales));
}

TEST(GateCodes, have_the_least_power_of_two_that_lets_nothing_saturate) {
  for (const float amax : {1e-30F, 0.01F, 1.0F, 1.5F, 1.75F, std::nextafter(1.75F, 2.0F), 1.999F,
                           448.0F, std::nextafter(448.0F, 500.0F), 3e38F}) {
    const auto scale = static_cast<float>(gate_scale(amax));
    EXPECT_LE(amax / scale, 448.0F) << amax;
    EXPECT_GT(amax / scale, 224.0F) << amax;
  }
  EXPECT_EQ(gate_scale(0.0F).bits, 0);
  EXPECT_EQ(gate_scale(1e-40F).bits, 0);
  EXPECT_EQ(gate_scale(std::numeric_limits<float>::infinity()).bits, 255);
  EXPECT_EQ(gate_scale(std::numeric_limits<float>::quiet_NaN()).bits, 255);
}

}  // namespace
}  // namespace tokamak
