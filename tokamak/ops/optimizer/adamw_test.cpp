#include "tokamak/ops/optimizer/adamw.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tokamak/ops/op_case.h"
#include "tokamak/ops/op_runner.h"

namespace tokamak {
namespace {

Types adam_types(const Dims& dims) {
  return {f32(dims), f32(dims), f32(dims), f32(dims), {.dtype = DType::kF64, .dims = {3}},
          f32({1})};
}

const std::vector<Fill> kFill{{},
                              {},
                              {.scale = 0.1, .shift = 1.0},
                              {},
                              {.scale = 0.05, .shift = 0.5},
                              {.scale = 0.1, .shift = 0.5}};

OpCase& add(CasesOf<AdamW>& c, const std::string& name, const AdamW& op, const Dims& dims) {
  Types in = adam_types(dims);
  if (op.has_copy) in.push_back(f32(dims));
  OpCase& added = c.good(name, op, in);
  added.fill = kFill;
  added.check_gradient = false;
  added.float_stays = {5};
  return added;
}

}  // namespace

template <>
OpCases cases_of<AdamW>() {
  CasesOf<AdamW> c;
  add(c, "small", {}, {6, 5});
  add(c, "no decay", {.weight_decay = 0.0}, {37});
  add(c, "three elements", {.beta1 = 0.4}, {3});
  add(c, "coupled", {.weight_decay = 0.1, .decoupled = false}, {4, 6});
  add(c, "float32 gradient", {}, {4, 6}).float_stays = {3, 5};
  add(c, "ranges", {.ranges = {{0, 7, 0.1}, {7, 9, 0.0}, {12, 40, 0.3}}}, {41});
  add(c, "large", {}, {20003});
  AdamW many;
  for (int64_t i = 0; i < 150; ++i) many.ranges.push_back({150 * i + 1, 150 * i + 140, 0.1});
  add(c, "many ranges", many, {150 * 150});
  // Of a float32 master, in float32 and in bfloat16.
  const std::vector<int> master{0, 1, 2, 3, 5};
  add(c, "copy", {.has_copy = true}, {20003}).float_stays = master;
  many.has_copy = true;
  add(c, "copy of ranges", many, {150 * 150}).float_stays = master;
  add(c, "copy of bfloat16", {.has_copy = true}, {5, 8}).float_stays = {3, 5, 6};
  c.bad("a range past the end", {.ranges = {{0, 7, 0.1}}}, adam_types({6}));
  c.bad("ranges of a matrix", {.ranges = {{0, 7, 0.1}}}, adam_types({2, 6}));
  Types in = adam_types({6, 5});
  in[1].dtype = DType::kBF16;
  c.bad("moments of another dtype", {}, in);
  in = adam_types({6, 5});
  in[3].dims = {5, 6};
  c.bad("gradient of another shape", {}, in);
  in = adam_types({6, 5});
  in[4].dims = {2};
  c.bad("two scalars", {}, in);
  c.bad("no copy", {.has_copy = true}, adam_types({6, 5}));
  in = adam_types({6, 5});
  in.push_back({.dtype = DType::kBF16, .dims = {30}});
  c.bad("a copy that nobody wants", {}, in);
  c.bad("copy of another shape", {.has_copy = true}, in);
  return c.cases;
}

namespace testing {
namespace {

// Two steps in double by the textbook.
TEST(AdamW, two_steps_by_hand) {
  const double lr = 0.1;
  const AdamW op{.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.5};
  CasesOf<AdamW> c;
  OpCase& one = add(c, "by hand", op, {1});
  Numbers w{2.0};
  Numbers m{0.0};
  Numbers v{0.0};
  double want_w = 2.0;
  double want_m = 0.0;
  double want_v = 0.0;
  for (int t = 1; t <= 2; ++t) {
    const double g = 0.5 * t;
    const double bias1 = 1.0 - std::pow(op.beta1, t);
    const double bias2 = 1.0 - std::pow(op.beta2, t);
    const auto out =
        run_op(one, types_as(one, DType::kF64), {w, m, v, {2.0 * g}, {lr, bias1, bias2}, {0.5}});
    want_w *= 1.0 - lr * 0.5;
    want_m = 0.9 * want_m + 0.1 * g;
    want_v = 0.99 * want_v + 0.01 * g * g;
    want_w -= lr * (want_m / bias1) / (std::sqrt(want_v / bias2) + 1e-8);
    w = out[0];
    m = out[1];
    v = out[2];
    EXPECT_NEAR(w[0], want_w, 1e-14);
    EXPECT_NEAR(m[0], want_m, 1e-14);
    EXPECT_NEAR(v[0], want_v, 1e-14);
  }
}

// Each range as a tensor of its own; the rest as it was.
TEST(AdamW, ranges_are_tensors_of_their_own) {
  CasesOf<AdamW> c;
  const AdamW op{.ranges = {{0, 5, 0.0}, {8, 11, 0.25}}};
  const OpCase& flat = add(c, "flat", op, {12});
  const auto values = fill_inputs(flat, DType::kF32);
  const auto got = run_op(flat, types_as(flat, DType::kF32), values);
  Numbers want = values[0];
  for (const AdamW::DecayRange& r : op.ranges) {
    const OpCase& own = add(c, "own", {.weight_decay = r.weight_decay}, {r.end - r.begin});
    auto part = values;
    for (size_t i = 0; i < 4; ++i)
      part[i] = {values[i].begin() + r.begin, values[i].begin() + r.end};
    const Numbers w = run_op(own, types_as(own, DType::kF32), part)[0];
    std::copy(w.begin(), w.end(), want.begin() + r.begin);
  }
  EXPECT_EQ(got[0], want);
}

// A copy has the bits of a cast of the new w, in ranges and, where nothing is updated, of before.
TEST(AdamW, copies_are_casts) {
  CasesOf<AdamW> c;
  const AdamW op{.ranges = {{0, 5, 0.0}, {8, 900, 0.25}}, .has_copy = true};
  const OpCase& one = add(c, "copies", op, {1000});
  Types types = types_as(one, DType::kF32);
  types[6].dtype = DType::kBF16;
  auto values = fill_inputs(one, DType::kF32);
  for (double& x : values[6]) x = static_cast<float>(BF16(static_cast<float>(x)));
  const auto got = run_op(one, types, values);
  for (size_t i = 0; i < got[0].size(); ++i) {
    const bool is_updated = i < 5 || (i >= 8 && i < 900);
    const double want = static_cast<float>(BF16(static_cast<float>(got[0][i])));
    EXPECT_EQ(got[3][i], is_updated ? want : values[6][i]) << i;
  }
  values[5] = {std::nan("")};
  EXPECT_EQ(run_op(one, types, values)[3], values[6]);
}

}  // namespace
}  // namespace testing
}  // namespace tokamak
