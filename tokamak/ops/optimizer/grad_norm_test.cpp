#include "tokamak/ops/optimizer/grad_norm.h"

#include <gtest/gtest.h>

#include "tokamak/ops/test_op_case.h"
#include "tokamak/ops/test_op_runner.h"

namespace tokamak {

template <>
OpCases cases_of<SumSquares>() {
  CasesOf<SumSquares> c;
  const auto add = [&](const std::string& name, Dims dims, SumSquares op = {}) -> OpCase& {
    OpCase& added = c.good(name, std::move(op), {f32(std::move(dims))});
    added.check_gradient = false;
    return added;
  };
  add("small", {6, 5}).flops = 60;
  add("scalar", {1});
  add("one block", {SumSquares::kBlock});
  add("three blocks", {3, SumSquares::kBlock - 7});
  add("ranges", {SumSquares::kBlock + 90},
      {.ranges = {{0, 9, 1.0}, {9, 10, 0.0}, {64, SumSquares::kBlock + 80, 0.5}}});
  SumSquares many;
  for (int64_t i = 0; i < 150; ++i) many.ranges.push_back({9 * i, 9 * i + 7, 1.0});
  add("many ranges", {9 * 150}, many);
  c.bad("of tokens", {}, {i32({3})});
  c.bad("a range past the end", {.ranges = {{2, 4, 1.0}}}, {f32({3})});
  return c.cases;
}

namespace {

TEST(SumSquares, weighs_each_range) {
  CasesOf<SumSquares> c;
  const OpCase& k = c.good("ranges", {.ranges = {{1, 3, 0.5}, {4, 5, 2.0}}}, {f32({6})});
  const auto out = testing::run_op(k, k.in, {{9, 1, 2, 9, 3, 9}});
  EXPECT_EQ(out[0], testing::Numbers({0.5 * (1 + 4) + 2.0 * 9}));
}

TEST(SumSquares, counts_the_blocks_that_it_makes) {
  constexpr int64_t kBlock = SumSquares::kBlock;
  for (const int64_t numel : {int64_t{1}, kBlock - 1, kBlock, kBlock + 1, 5 * kBlock + 3})
    EXPECT_EQ(SumSquares{}.num_blocks(numel), std::ssize(SumSquares{}.blocks(numel))) << numel;
  const SumSquares op{.ranges = {{3, 3, 1.0}, {5, kBlock + 5, 1.0}, {kBlock + 5, 3 * kBlock, 0.5}}};
  EXPECT_EQ(op.num_blocks(4 * kBlock), std::ssize(op.blocks(4 * kBlock)));
}

}  // namespace

template <>
OpCases cases_of<ClipFactor>() {
  CasesOf<ClipFactor> c;
  const TensorType sum{.dtype = DType::kF64, .dims = {1}};
  const auto add = [&](const std::string& name, double max_norm, int64_t value) {
    OpCase& added = c.good(name, {.max_norm = max_norm}, {sum});
    added.check_gradient = false;
    added.fill = {{.values = {value}}};
  };
  add("clips", 1.0, 16);
  add("does not clip", 5.0, 16);
  add("off", 0.0, 16);
  add("zero gradient", 1.0, 0);
  OpCase& with_loss = c.good("with the loss", {.max_norm = 1.0}, {sum, sum});
  with_loss.check_gradient = false;
  with_loss.fill = {{.values = {4}}, {.values = {3}}};
  // The norm is 2. Beyond its limit the factor is NaN, which equals nothing: runs that skip a spike
  // test that.
  for (const int64_t limit : {int64_t{2}, int64_t{3}}) {
    OpCase& limited = c.good(fmt::format("limit {}", limit), {.max_norm = 1.0}, {sum, sum, sum});
    limited.check_gradient = false;
    limited.fill = {{.values = {4}}, {.values = {3}}, {.values = {limit}}};
  }
  c.bad("of float32", {}, {f32({1})});
  return c.cases;
}

}  // namespace tokamak
