#include "tokamak/ops/float8/amax_history.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tokamak/ops/test_op_case.h"
#include "tokamak/ops/test_op_runner.h"

namespace tokamak {
namespace {

// A row with a scale, then rows without one.
const std::vector<int64_t> kTable{3, 1, 2, 0, 0};

}  // namespace

template <>
OpCases cases_of<StageMaxima>() {
  CasesOf<StageMaxima> c;
  const auto add = [&](const std::string& name, std::vector<int> row_of) {
    const Types in(row_of.size(), f32({1}));
    OpCase& added = c.good(name, {.row_of = std::move(row_of)}, in);
    added.check_gradient = false;
    added.keeps_greater = true;
    for (int i = 0; i < static_cast<int>(in.size()); ++i) {
      added.fill.push_back({.values = {1 + i * 7 % 5}});
      added.float_stays.push_back(i);
    }
  };
  add("one", {0});
  add("rows", {0, 1, 2, 3});
  add("shared rows", {0, 1, 0, 2, 1, 0});
  c.bad("another number of rows", {.row_of = {0}}, {f32({1}), f32({1})});
  c.bad("a row without input", {.row_of = {0, 2}}, {f32({1}), f32({1})});
  c.bad("many maxima at once", {.row_of = {0}}, {f32({2})});
  return c.cases;
}

template <>
OpCases cases_of<AmaxHistory>() {
  CasesOf<AmaxHistory> c;
  const auto add = [&](const std::string& name, const AmaxHistory& op, int64_t length) {
    const auto sites = static_cast<int64_t>(op.largest.size());
    OpCase& added = c.good(name, op, {f32({sites, 1 + length}), f32({sites}), f32({1})});
    added.check_gradient = false;
    added.float_stays = {0, 1, 2};
    added.fill = {{.values = kTable}, {.values = {200, 0, 5}}, {.values = {1}}};
  };
  add("one place", {.largest = {448, 57344, 448}}, 1);
  add("some", {.largest = {448, 448, 57344, 448, 57344}, .margin = 1}, 4);
  add("many", {.largest = std::vector<float>(70, 448.0F), .most_recent = true}, 1024);
  add("parts and powers of two", {.largest = {448, 57344, 448}, .power_of_two = true}, 700);
  c.bad("another number of sites", {.largest = {448}}, {f32({2, 5}), f32({2}), f32({1})});
  c.bad("no history", {.largest = {448}}, {f32({1, 1}), f32({1}), f32({1})});
  c.bad("maxima of other sites", {.largest = {448}}, {f32({1, 5}), f32({2}), f32({1})});
  return c.cases;
}

namespace {

TEST(StageMaxima, keeps_what_is_greater) {
  CasesOf<StageMaxima> c;
  const OpCase& k = c.good("", {.row_of = {0, 1, 0}}, Types(3, f32({1})));
  EXPECT_EQ(testing::run_op(k, k.in, {{1}, {5}, {2}})[0], testing::Numbers({2, 5}));
}

TEST(AmaxHistory, forgets_the_oldest) {
  CasesOf<AmaxHistory> c;
  const AmaxHistory op{.largest = {448, 448}};
  const OpCase& k = c.good("", op, {f32({2, 4}), f32({2}), f32({1})});
  const auto out = testing::run_op(k, k.in, {{0.5, 1, 2, 896, 64, 7, 0, 0}, {4, 8}, {1}});
  EXPECT_EQ(out[0], testing::Numbers({112, 4, 1, 2, 56, 8, 7, 0}));
  EXPECT_EQ(out[1], testing::Numbers({1}));
}

TEST(AmaxHistory, leaves_the_table_after_a_step_that_diverged) {
  CasesOf<AmaxHistory> c;
  const OpCase& k = c.good("", {.largest = {448}}, {f32({1, 3}), f32({1}), f32({1})});
  const auto out = testing::run_op(k, k.in, {{0.5, 1, 2}, {4}, {std::nan("")}});
  EXPECT_EQ(out[0], testing::Numbers({0.5, 1, 2}));
}

}  // namespace

}  // namespace tokamak
