#include "tokamak/ops/float8/code_counts.h"

#include <gtest/gtest.h>

#include "tokamak/core/float8.h"
#include "tokamak/ops/op_case.h"
#include "tokamak/ops/op_runner.h"

namespace tokamak {

template <>
OpCases cases_of<CodeCounts>() {
  using enum ScaleGrid;
  CasesOf<CodeCounts> c;
  const auto add = [&](const std::string& name, ScaleGrid grid, DType dtype, int64_t rows,
                       int64_t columns) {
    const Types in{
        {.dtype = code_type(grid, dtype), .dims = {rows, columns / (is_nvfp4(grid) ? 2 : 1)}},
        {.dtype = scale_type(grid), .dims = scale_dims(grid, rows, columns)}};
    OpCase& one = c.good(name, {.grid = grid}, in);
    one.check_gradient = false;
    one.float_stays = {1};
    one.fill = {{.scale = dtype == DType::kE5M2 ? 30000.0 : 250.0, .limit = 256}, {.limit = 120}};
    if (scale_type(grid) == DType::kF32) one.fill[1] = {.values = {3, 1, 2, 5}};
  };
  for (const DType dtype : {DType::kE4M3, DType::kE5M2}) {
    const std::string format = std::string(name_of(dtype)) + ", ";
    add(format + "tensor", kTensor, dtype, 48, 64);
    add(format + "tensor, odd columns", kTensor, dtype, 5, 37);
    add(format + "rows", kRows, dtype, 33, 48);
    add(format + "segments", kSegments, dtype, 20, 400);
    add(format + "blocks", kBlocks, dtype, 144, 272);
    add(format + "many", kRows, dtype, 700, 1024);
  }
  add("mx", kMx, DType::kE4M3, 96, 160);
  add("nvfp4", kNvfp4, DType::kU8, 32, 96);
  add("nvfp4 blocks", kNvfp4Blocks, DType::kU8, 48, 64);
  c.bad("scales of another grid", {.grid = kRows},
        {{.dtype = DType::kE4M3, .dims = {4, 16}}, f32({1})});
  c.bad("values", {}, {f32({4, 16}), f32({1})});
  c.bad("bytes of 4 bits", {}, {{.dtype = DType::kU8, .dims = {4, 16}}, f32({1})});
  return c.cases;
}

namespace {

TEST(CodeCounts, counts_zeros_of_both_signs_and_the_largest) {
  CasesOf<CodeCounts> c;
  const Types in{{.dtype = DType::kE4M3, .dims = {2, 4}}, f32({2})};
  const OpCase& k = c.good("", {.grid = ScaleGrid::kRows}, in);
  const auto out = testing::run_op(k, k.in, {{0, -0.0, 448, -448, 1, 2, 3, 0}, {0.25, 64}});
  EXPECT_EQ(out[0], testing::Numbers({8, 3, 2}));
  EXPECT_EQ(out[1], testing::Numbers({192}));
  EXPECT_EQ(out[2], testing::Numbers({64}));
}

}  // namespace

}  // namespace tokamak
