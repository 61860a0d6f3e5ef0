#include <algorithm>
#include <memory>

#include <gtest/gtest.h>

#include "tokamak/ops/float8/scaled_matmul.h"
#include "tokamak/plan/compile.h"

namespace tokamak {
namespace {

// Returns what explain_variants() says about "wgmma_fp8" for quantized values [m, 4096] by [n,
// 4096].
std::string own_kernel(const ScaledMatmul& op, int64_t m, int64_t n,
                       const Target& target = {.backend = "gpu", .arch = 90}) {
  constexpr int64_t k = 4096;
  const auto quantized = [](int64_t rows) {
    return TensorType{.dtype = DType::kE4M3, .dims = {rows, k}};
  };
  const Types in{quantized(m),
                 {.dims = scale_dims(op.a_grid, m, k)},
                 quantized(n),
                 {.dims = scale_dims(op.b_grid, n, k)}};
  const Node node{.rules = &kRules<ScaledMatmul>, .op = std::make_shared<const ScaledMatmul>(op)};
  const Types out = op.infer(in);
  const std::string prefix = "scaled_matmul/wgmma_fp8: ";
  for (const std::string& line : explain_variants(node, {.in = in, .out = out}, target)) {
    if (line.starts_with(prefix)) return line.substr(prefix.size());
  }
  return "no such variant";
}

constexpr ScaledMatmul kBlockwise{.a_grid = ScaleGrid::kSegments, .b_grid = ScaleGrid::kBlocks};

TEST(Variants, are_for_the_arch_that_they_name) {
  EXPECT_EQ(own_kernel(kBlockwise, 16384, 4096), "ok");
  for (const int arch : {80, 89, 100, 120})
    EXPECT_EQ(own_kernel(kBlockwise, 16384, 4096, {.backend = "gpu", .arch = arch}), "for sm_90a");
  EXPECT_EQ(
      own_kernel(kBlockwise, 16384, 4096, {.backend = "gpu", .arch = 90, .lacks = {"sm_90a"}}),
      "no sm_90a here");
  EXPECT_EQ(own_kernel(kBlockwise, 16384, 4096, {}), "for gpu");
}

TEST(Variants, are_taken_where_they_are_faster) {
  const ScaledMatmul by_columns{.a_grid = ScaleGrid::kSegments, .b_grid = ScaleGrid::kSegments};
  for (const ScaledMatmul& op : {ScaledMatmul{}, by_columns})
    EXPECT_EQ(own_kernel(op, 16384, 4096), "is for segments by blocks");
  EXPECT_EQ(own_kernel(kBlockwise, 3072, 3072), "ok");
  EXPECT_EQ(own_kernel(kBlockwise, 2048, 2048),
            "the last round of tiles would leave most multiprocessors idle");
  ScaledMatmul emulated = kBlockwise;
  emulated.emulate = true;
  EXPECT_EQ(own_kernel(emulated, 16384, 4096), "quantize.linear.float8.emulate is set");
}

}  // namespace
}  // namespace tokamak
