#include "tokamak/ops/layout/pack.h"

#include <gtest/gtest.h>

#include "tokamak/ops/test_op_case.h"
#include "tokamak/ops/test_op_runner.h"

namespace tokamak {
namespace {

template <class T>
testing::Numbers run(const T& op, const Types& in, const std::vector<testing::Numbers>& values) {
  CasesOf<T> c;
  const OpCase& k = c.good("run", op, in);
  return testing::run_op(k, in, values)[0];
}

TEST(Pack, split_pads_with_zeros_and_join_undoes_it) {
  const testing::Numbers x{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const testing::Numbers want{0, 1, 5, 6, 2, 7, 0, 0, 3, 4, 8, 9};
  const std::vector<int64_t> sizes{2, 1, 2};
  ASSERT_EQ(run(Split{.dim = 1, .sizes = sizes}, {i32({2, 5})}, {x}), want);
  EXPECT_EQ(run(Join{.dim = 1, .sizes = sizes, .dims = {2, 5}}, {i32({3, 4})}, {want}), x);
  // Longer rows than needed, as an all-gather of padded pieces leaves them.
  EXPECT_EQ(
      run(Join{.dim = 0, .sizes = {1, 1}, .dims = {2, 2}}, {i64({2, 3})}, {{1, 2, 9, 3, 4, 9}}),
      testing::Numbers({1, 2, 3, 4}));
}

TEST(Pack, slice_dim_puts_zeros_after_the_slice) {
  EXPECT_EQ(run(SliceDim{.dim = 1, .begin = 1, .end = 3, .zeros = 2}, {i32({2, 3})},
                {{1, 2, 3, 4, 5, 6}}),
            testing::Numbers({2, 3, 0, 0, 5, 6, 0, 0}));
}

}  // namespace

template <>
OpCases cases_of<Split>() {
  CasesOf<Split> c;
  c.good("even rows", {.dim = 0, .sizes = {2, 2, 2}}, {f32({6, 5})});
  c.good("uneven", {.dim = 1, .sizes = {3, 0, 4}}, {f32({2, 7, 3})});
  c.good("last dim, many rows", {.dim = 2, .sizes = {40, 24}}, {f32({3, 50, 64})});
  c.good("longer rows", {.dim = 1, .sizes = {3}, .row_numel = 25}, {f32({4, 3, 2})});
  c.good("tokens", {.dim = 1, .sizes = {1, 3}}, {i32({2, 4})}).check_gradient = false;
  c.good("chunks", {.dim = 1, .sizes = {4, 4}, .order = {0, 2, 3, 1}}, {f32({2, 8, 3})});
  c.bad("short rows", {.dim = 0, .sizes = {2, 4}, .row_numel = 19}, {f32({6, 5})});
  c.bad("a chunk twice", {.dim = 0, .sizes = {2, 4}, .order = {0, 1, 1}}, {f32({6, 5})});
  c.bad("a chunk in two pieces", {.dim = 0, .sizes = {1, 5}, .order = {0, 2, 1}}, {f32({6, 5})});
  c.bad("too few", {.dim = 0, .sizes = {2, 3}}, {f32({6, 5})});
  c.bad("no such dim", {.dim = 2, .sizes = {6}}, {f32({6, 5})});
  return c.cases;
}

template <>
OpCases cases_of<Join>() {
  CasesOf<Join> c;
  c.good("even rows", {.dim = 0, .sizes = {2, 2}, .dims = {4, 5}}, {f32({2, 10})});
  c.good("uneven", {.dim = 1, .sizes = {3, 0, 4}, .dims = {2, 7, 3}}, {f32({3, 24})});
  c.good("longer rows", {.dim = 1, .sizes = {1, 3}, .dims = {2, 4}}, {f32({2, 9})}).check_gradient =
      false;
  c.bad("short rows", {.dim = 1, .sizes = {3, 0, 4}, .dims = {2, 7, 3}}, {f32({3, 23})});
  c.bad("rows for other pieces", {.dim = 0, .sizes = {2, 2}, .dims = {4, 5}}, {f32({3, 10})});
  return c.cases;
}

template <>
OpCases cases_of<SliceDim>() {
  CasesOf<SliceDim> c;
  const auto good = [&](const std::string& name, SliceDim op, const Types& in) {
    c.good(name, op, in).check_gradient = false;
  };
  good("rows", {.dim = 0, .begin = 1, .end = 4}, {f32({6, 4})});
  good("middle", {.dim = 1, .begin = 2, .end = 5}, {f32({6, 5, 3})});
  good("last dim", {.dim = 2, .begin = 0, .end = 1}, {f32({6, 2, 3})});
  good("tokens", {.dim = 1, .begin = 1, .end = 2}, {i32({6, 2})});
  good("rows of zeros", {.dim = 0, .begin = 0, .end = 6, .zeros = 2}, {f32({6, 40})});
  good("columns of zeros", {.dim = 1, .begin = 3, .end = 20, .zeros = 15}, {f32({6, 21})});
  good("zeros alone", {.dim = 1, .begin = 2, .end = 2, .zeros = 3}, {f32({4, 2, 3})});
  c.bad("past the end", {.dim = 1, .begin = 2, .end = 6}, {f32({2, 5})});
  c.bad("fewer than no zeros", {.dim = 1, .begin = 2, .end = 5, .zeros = -1}, {f32({2, 5})});
  return c.cases;
}

template <>
OpCases cases_of<ConcatDim>() {
  CasesOf<ConcatDim> c;
  const auto good = [&](const std::string& name, ConcatDim op, const Types& in) {
    c.good(name, op, in).check_gradient = false;
  };
  good("middle", {.dim = 1}, {f32({6, 2, 3}), f32({6, 4, 3}), f32({6, 1, 3})});
  good("rows", {.dim = 0}, {f32({2, 6}), f32({3, 6})});
  good("last dim", {.dim = 1}, {i32({6, 2}), i32({6, 5})});
  c.bad("other dims differ", {.dim = 1}, {f32({6, 2, 3}), f32({5, 4, 3})});
  return c.cases;
}

template <>
OpCases cases_of<SumSlices>() {
  CasesOf<SumSlices> c;
  const auto good = [&](const std::string& name, SumSlices op, const Types& in) {
    c.good(name, std::move(op), in).check_gradient = false;
  };
  good("apart", {.dim = 1, .extent = 9, .begins = {0, 5}}, {f32({6, 2, 3}), f32({6, 3, 3})});
  good("whole packs", {.dim = 1, .extent = 24, .begins = {0, 8}}, {f32({6, 16}), f32({6, 16})});
  good("overlapping", {.dim = 1, .extent = 5, .begins = {0, 2}}, {f32({6, 5, 3}), f32({6, 3, 3})});
  good("rows", {.dim = 0, .extent = 6, .begins = {0, 0, 2}}, {f32({6}), f32({6}), f32({3})});
  good("long", {.dim = 1, .extent = 9000, .begins = {0, 7}}, {f32({3, 9000}), f32({3, 8000})});
  c.bad("past the end", {.dim = 0, .extent = 6, .begins = {4}}, {f32({3})});
  c.bad("no place", {.dim = 0, .extent = 6, .begins = {0}}, {f32({3}), f32({3})});
  return c.cases;
}

}  // namespace tokamak
