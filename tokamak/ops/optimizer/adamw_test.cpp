#include "tokamak/ops/optimizer/adamw.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "tokamak/ops/test_op_case.h"
#include "tokamak/ops/test_op_runner.h"

namespace tokamak {
namespace {

Types adam_types(const Dims& dims) {
  return {f32(dims), f32(dims), f32(dims), f32(dims), {.dtype = DType::kF64, .dims = {4}},
          f32({1})};
}

const std::vector<Fill> kFill{{},
                              {},
                              {.scale = 0.1, .shift = 1.0},
                              {},
                              {.scale = 0.05, .shift = 0.5},
                              {.scale = 0.1, .shift = 0.5}};

constexpr uint64_t kStream = 77;

OpCase& add(CasesOf<AdamW>& c, const std::string& name, const AdamW& op, const Dims& dims) {
  Types in = adam_types(dims);
  if (op.has_copy) in.push_back(f32(dims));
  OpCase& added = c.good(name, op, in);
  added.fill = kFill;
  added.check_gradient = false;
  added.float_stays = {5};
  return added;
}

// With moments in bfloat16, which are one of two neighbours by random bits. A value that was summed
// in other bits lies on the other side of its threshold now and then.
OpCase& add_stochastic(CasesOf<AdamW>& c, const std::string& name, AdamW op, const Dims& dims) {
  op.is_stochastic = true;
  op.seed = 3;
  op.stream = kStream;
  OpCase& added = add(c, name, op, dims);
  added.in[1].dtype = added.in[2].dtype = DType::kBF16;
  added.float_stays = {1, 2, 5};
  added.bound = 3e-3;
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
  add_stochastic(c, "stochastic", {}, {20003});
  add_stochastic(c, "stochastic of a float32 gradient", {}, {6, 5}).float_stays = {1, 2, 3, 5};
  AdamW placed{.has_copy = true};
  // A box of columns, a part of a tensor that begins amid four elements, and a hole.
  placed.ranges = {{0, 700, 0.1, 5, {.first = 30, .at = 11, .width = 50, .pitch = 90}},
                   {704, 5000, 0.0, 6, {.at = 1001}}};
  add_stochastic(c, "stochastic with places and a copy", placed, {5003}).float_stays = {0, 1, 2, 3,
                                                                                        5};
  add(c, "float32 moments", {}, {37, 8}).float_stays = {1, 2, 3, 5};
  c.bad("a range past the end", {.ranges = {{0, 7, 0.1}}}, adam_types({6}));
  c.bad("ranges of a matrix", {.ranges = {{0, 7, 0.1}}}, adam_types({2, 6}));
  Types in = adam_types({6, 5});
  in[1].dtype = DType::kBF16;
  c.bad("moments of another dtype", {}, in);
  c.bad("stochastic float32", {.is_stochastic = true}, adam_types({6, 5}));
  in = adam_types({6, 5});
  in[3].dims = {5, 6};
  c.bad("gradient of another shape", {}, in);
  in = adam_types({6, 5});
  in[4].dims = {3};
  c.bad("three scalars", {}, in);
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
    const auto out = run_op(one, types_as(one, DType::kF64),
                            {w, m, v, {2.0 * g}, {lr, bias1, bias2, 1.0 * t}, {0.5}});
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

double as_bf16(double x) {
  return static_cast<double>(static_cast<float>(BF16(static_cast<float>(x))));
}

// The same element many times: each moment is one of two neighbours, their mean is the moment, and
// neither knows of the other. Another step, seed or tensor draws other bits.
TEST(AdamW, stochastic_rounding_is_unbiased) {
  constexpr int64_t kCount = 200000;
  CasesOf<AdamW> c;
  const AdamW op{.beta1 = 0.9, .beta2 = 0.999};
  const OpCase& one = add_stochastic(c, "unbiased", op, {kCount});
  const Types types = types_as(one, DType::kF32);
  const auto run = [&](const OpCase& of, double step) {
    const auto all = [&](double x) { return Numbers(kCount, x); };
    return run_op(of, types,
                  {all(1.0),
                   all(as_bf16(0.37)),
                   all(as_bf16(2.6e-9)),
                   all(as_bf16(3e-5)),
                   {0.1, 0.5, 0.5, step},
                   {1.0}});
  };
  const auto got = run(one, 7.0);
  const double want[] = {0.9 * as_bf16(0.37) + 0.1 * as_bf16(3e-5),
                         0.999 * as_bf16(2.6e-9) + 0.001 * as_bf16(3e-5) * as_bf16(3e-5)};
  std::vector<std::vector<bool>> ups;
  for (size_t k = 0; k < 2; ++k) {
    const Numbers& moments = got[k + 1];
    const auto [low, high] = std::minmax_element(moments.begin(), moments.end());
    EXPECT_LT(*low, want[k]);
    EXPECT_GT(*high, want[k]);
    EXPECT_NEAR(*high / *low, 1.0, 0.0079);
    const double share = (want[k] - *low) / (*high - *low);
    ups.emplace_back();
    for (const double m : moments) {
      ASSERT_TRUE(m == *low || m == *high);
      ups.back().push_back(m == *high);
    }
    const auto up = static_cast<double>(std::count(ups[k].begin(), ups[k].end(), true));
    // Five standard deviations, and the 2^-16 of a random number.
    EXPECT_NEAR(up / kCount, share, 5.0 * std::sqrt(share * (1.0 - share) / kCount) + 1.6e-5);
  }
  double both = 0.0;
  for (size_t i = 0; i < kCount; ++i) both += ups[0][i] && ups[1][i] ? 1.0 : 0.0;
  const auto share = [&](size_t k) {
    return static_cast<double>(std::count(ups[k].begin(), ups[k].end(), true)) / kCount;
  };
  EXPECT_NEAR(both / kCount, share(0) * share(1), 0.005);
  EXPECT_EQ(run(one, 7.0), got);
  const auto is_other = [&](const Numbers& m) {
    double unequal = 0.0;
    for (size_t i = 0; i < kCount; ++i) unequal += m[i] != got[1][i] ? 1.0 : 0.0;
    EXPECT_NEAR(unequal / kCount, 2.0 * share(0) * (1.0 - share(0)), 0.01);
  };
  is_other(run(one, 8.0)[1]);
  AdamW other = *static_cast<const AdamW*>(one.op.get());
  other.seed = 4;
  OpCase seeded = one;
  seeded.op = std::make_shared<const AdamW>(other);
  is_other(run(seeded, 7.0)[1]);
  other.seed = 3;
  other.stream = kStream + 1;
  seeded.op = std::make_shared<const AdamW>(other);
  is_other(run(seeded, 7.0)[1]);
}

// A tensor of 30 rows of 50, and two ranks' parts of it: boxes of columns, in flat slices.
TEST(AdamW, parts_are_rounded_as_the_whole) {
  CasesOf<AdamW> c;
  const OpCase whole = add_stochastic(c, "whole", {}, {30, 50});
  const Types types = types_as(whole, DType::kF32);
  const auto values = fill_inputs(whole, DType::kF32);
  const auto want = run_op(whole, types, values);
  for (const auto& [first, width] : {std::pair<int64_t, int64_t>{0, 17}, {17, 33}}) {
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 201}, {201, 30 * width}}) {
      AdamW op;
      op.ranges = {{3, 3 + end - begin, 0.01, kStream, {first, begin, width, 50}}};
      const OpCase& part = add_stochastic(c, "part", op, {end - begin + 5});
      auto of_part = values;
      const auto index = [&, w = width, f = first, b = begin](int64_t i) {
        return static_cast<size_t>((b + i) / w * 50 + f + (b + i) % w);
      };
      for (size_t k = 0; k < 4; ++k) {
        of_part[k].assign(static_cast<size_t>(end - begin + 5), 0.0);
        for (int64_t i = 0; i < end - begin; ++i)
          of_part[k][static_cast<size_t>(i + 3)] = values[k][index(i)];
      }
      const auto got = run_op(part, types_as(part, DType::kF32), of_part);
      for (size_t k = 0; k < 3; ++k) {
        for (int64_t i = 0; i < end - begin; ++i)
          ASSERT_EQ(got[k][static_cast<size_t>(i + 3)], want[k][index(i)]) << i;
      }
    }
  }
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
