#include "tokamak/ops/elementwise/dropout.h"

#include <gtest/gtest.h>

#include "tokamak/ops/test_op_case.h"
#include "tokamak/ops/test_op_runner.h"

namespace tokamak {
namespace {

TEST(DropoutMask, threshold_is_the_least_word_kept) {
  EXPECT_EQ(dropout_threshold(0.0), 0U);
  EXPECT_EQ(dropout_threshold(0.5), 0x80000000U);
  for (const double p : {1e-12, 0.1, 0.3, 0.9, 0.999999}) {
    const uint32_t word = dropout_threshold(p);
    EXPECT_GE(to_uniform(word), p);
    EXPECT_TRUE(word == 0 || to_uniform(word - 1) < p) << p;
  }
}

TEST(DropoutMask, keeps_its_share_and_differs_by_site_and_sample) {
  constexpr int kElements = 20000;
  const uint32_t threshold = dropout_threshold(0.3);
  int kept = 0;
  int same_other_site = 0;
  int same_other_sample = 0;
  for (uint64_t e = 0; e < kElements; ++e) {
    const bool keeps = dropout_keeps(dropout_key(0, 1), threshold, 5, e);
    kept += keeps ? 1 : 0;
    same_other_site += keeps == dropout_keeps(dropout_key(0, 2), threshold, 5, e) ? 1 : 0;
    same_other_sample += keeps == dropout_keeps(dropout_key(0, 1), threshold, 6, e) ? 1 : 0;
  }
  EXPECT_NEAR(kept, 0.7 * kElements, 0.02 * kElements);
  EXPECT_NEAR(same_other_site, 0.58 * kElements, 0.02 * kElements);
  EXPECT_NEAR(same_other_sample, 0.58 * kElements, 0.02 * kElements);
}

TEST(DropoutMask, is_what_the_kernel_applies) {
  const Dropout op{.p = 0.25, .seed = 9, .stream = 4};
  CasesOf<Dropout> c;
  OpCase& k = c.good("mask", op, {f32({3, 7, 41}), i64({3})});
  const int64_t rows[] = {11, 2, int64_t{1} << 40};
  k.fill = {{}, {.values = {rows[0], rows[1], rows[2]}}};
  const auto values = testing::fill_inputs(k, DType::kF64);
  const auto y = testing::run_op(k, testing::types_as(k, DType::kF64), values)[0];
  for (size_t i = 0; i < y.size(); ++i) {
    const bool keeps = dropout_keeps(dropout_key(op.seed, op.stream), dropout_threshold(op.p),
                                     static_cast<uint64_t>(rows[i / 287]), i % 287);
    EXPECT_DOUBLE_EQ(y[i], keeps ? values[0][i] / 0.75 : 0.0) << i;
  }
}

TEST(DropoutMask, of_natural_positions_is_that_without) {
  const Dropout op{.p = 0.4, .seed = 2, .stream = 7};
  CasesOf<Dropout> c;
  OpCase plain = c.good("mask", op, {f32({2, 9, 33}), i64({2})});
  plain.fill = {{}, {.values = {5, 8}}};
  OpCase placed = c.good("mask", op, {f32({2, 9, 33}), i64({2}), i32({2, 9})});
  placed.fill = {{}, {.values = {5, 8}}, {.values = {0, 1, 2, 3, 4, 5, 6, 7, 8}}};
  EXPECT_EQ(testing::run_op(plain, plain.in, testing::fill_inputs(plain, DType::kF32)),
            testing::run_op(placed, placed.in, testing::fill_inputs(placed, DType::kF32)));
}

}  // namespace

template <>
OpCases cases_of<Dropout>() {
  CasesOf<Dropout> c;
  const auto good = [&](const std::string& name, const Dropout& op, const Dims& x) {
    c.good(name, op, {f32(x), i64({x[0]})}).fill = {{}, {.limit = 1000}};
  };
  good("tenth", {.p = 0.1, .seed = 3}, {6, 5, 7});
  good("half, several blocks", {.p = 0.5, .stream = 8}, {2, 333});
  good("nothing dropped", {}, {1, 5});
  good("whole packs", {.p = 0.3, .seed = 5}, {2, 3, 16});
  c.good("whole packs by position", {.p = 0.3, .columns = 40, .first_column = 8},
         {f32({2, 3, 16}), i64({2}), i32({2, 3})})
      .fill = {{}, {.limit = 1000}, {.limit = 50}};
  c.good("by position", {.p = 0.3, .seed = 3}, {f32({6, 6, 9}), i64({6}), i32({6, 6})}).fill = {
      {}, {.limit = 1000}, {.values = {4, 0, 1, 7, 2, 9}}};
  c.good("some columns", {.p = 0.3, .columns = 31, .first_column = 5},
         {f32({2, 3, 26}), i64({2}), i32({2, 3})})
      .fill = {{}, {.limit = 1000}, {.limit = 50}};
  c.bad("columns past the end", {.p = 0.1, .columns = 4}, {f32({3, 5, 7}), i64({3}), i32({3, 5})});
  c.bad("positions of a matrix", {.p = 0.1}, {f32({3, 5}), i64({3}), i32({3, 5})});
  c.bad("everything dropped", {.p = 1.0}, {f32({3, 5}), i64({3})});
  c.bad("rows of another batch", {.p = 0.1}, {f32({3, 5}), i64({5})});
  return c.cases;
}

}  // namespace tokamak
