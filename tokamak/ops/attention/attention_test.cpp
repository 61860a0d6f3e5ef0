#include "tokamak/ops/attention/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tokamak/ops/test_op_case.h"
#include "tokamak/ops/test_op_runner.h"

namespace tokamak {
namespace {

struct Sizes {
  int64_t B, S, T, H, K, D;
};

Types operands(const Sizes& s) {
  return {f32({s.B, s.S, s.H, s.D}), f32({s.B, s.T, s.K, s.D}), f32({s.B, s.T, s.K, s.D})};
}

Types operands(const Attention& op, const Sizes& s) {
  if (op.packed_kv_heads == 0) return operands(s);
  return {f32({s.B, s.S, s.H + 2 * s.K, s.D})};
}

OpCase& good(CasesOf<Attention>& c, const std::string& name, const Attention& op, const Sizes& s,
             std::vector<int64_t> last = {}) {
  Types in = operands(op, s);
  if (op.has_length) in.push_back(i32({static_cast<int64_t>(last.size())}));
  if (op.dropout_p > 0.0) in.push_back(i64({s.B}));
  OpCase& added = c.good(name, op, in);
  added.check_gradient = !op.has_length;
  added.fill.resize(op.packed_kv_heads > 0 ? 1 : 3);
  added.fill.push_back({.limit = 1000, .values = std::move(last)});
  return added;
}

OpCase& good_grad(CasesOf<AttentionGrad>& c, const std::string& name, const AttentionGrad& op,
                  const Sizes& s) {
  Types in = operands(op.forward, s);
  const size_t parts = in.size();
  const TensorType o = f32({s.B, s.S, s.H, s.D});
  in.insert(in.end(), {o, f32({s.B, s.H, s.S}), o});
  if (op.forward.dropout_p > 0.0) in.push_back(i64({s.B}));
  if (op.has_dlse) in.push_back(f32({s.B, s.H, s.S}));
  OpCase& added = c.good(name, op, in);
  added.check_gradient = false;
  added.fill.resize(parts + 1);
  added.fill.insert(added.fill.end(), {{.shift = 3.0}, {}, {.limit = 1000}});
  const auto lse = static_cast<int>(parts) + 1;
  added.float_stays = {lse, op.has_dlse ? static_cast<int>(in.size()) - 1 : lse};
  return added;
}

testing::Numbers rows_of_heads(const testing::Numbers& x, const Sizes& s, int64_t first) {
  testing::Numbers part;
  for (int64_t r = 0; r < s.B * s.S; ++r) {
    const auto row = x.begin() + (r * s.H + first) * s.D;
    part.insert(part.end(), row, row + (s.H - first) * s.D);
  }
  return part;
}

TEST(AttentionOp, tokens_one_by_one_over_a_cache_equal_one_call) {
  const Sizes s{.B = 2, .S = 9, .T = 9, .H = 4, .K = 2, .D = 16};
  CasesOf<Attention> c;
  const OpCase whole = good(c, "whole", {}, s);
  const auto values = testing::fill_inputs(whole, DType::kF32);
  const auto want = testing::run_op(whole, whole.in, values);
  for (int64_t at = 0; at < s.S; ++at) {
    const Sizes one{.B = s.B, .S = 1, .T = s.T, .H = s.H, .K = s.K, .D = s.D};
    const OpCase step = good(c, "step", {.has_length = true}, one, {at + 1});
    auto step_values = values;
    step_values[0].clear();
    const int64_t width = s.H * s.D;
    for (int64_t b = 0; b < s.B; ++b) {
      const auto row = values[0].begin() + (b * s.S + at) * width;
      step_values[0].insert(step_values[0].end(), row, row + width);
    }
    step_values.push_back({static_cast<double>(at + 1)});
    const auto got = testing::run_op(step, step.in, step_values);
    for (int64_t b = 0; b < s.B; ++b) {
      for (int64_t d = 0; d < width; ++d) {
        const auto from = static_cast<size_t>((b * s.S + at) * width + d);
        ASSERT_NEAR(got[0][b * width + d], want[0][from], 1e-5) << at;
      }
    }
  }
}

TEST(AttentionOp, a_query_without_keys_gives_zero) {
  CasesOf<Attention> c;
  const OpCase k =
      good(c, "none", {.has_length = true}, {.B = 1, .S = 4, .T = 8, .H = 2, .K = 1, .D = 8}, {2});
  const auto out = testing::run_op(k, k.in, testing::fill_inputs(k, DType::kF32));
  for (size_t i = 0; i < 2 * 2 * 8; ++i) EXPECT_EQ(out[0][i], 0.0);
  EXPECT_EQ(out[1][0], -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isfinite(out[1][2]));
}

// Places whose results are NaN.
std::vector<bool> nans_of(const testing::Numbers& x) {
  std::vector<bool> nans;
  for (const double each : x) nans.push_back(std::isnan(each));
  return nans;
}

struct Poison {
  const char* name;
  size_t input;  // q, k
  int64_t row;   // of the first head; -1 = all rows
  float value;
};

// One head reads rows of q and k with values that give NaN or infinite scores.
TEST(AttentionOp, fast_kernels_give_nan_where_the_reference_does) {
  const auto all_ones = std::bit_cast<float>(0xFFFFFFFFU);  // memory that nobody has written
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  for (const Sizes& s : {Sizes{1, 150, 150, 2, 1, 16}, Sizes{1, 3, 150, 2, 1, 16}}) {
    for (const Attention& op : {Attention{}, Attention{.cap = 20.0}, Attention{.window = 40},
                                Attention{.causal = false}}) {
      for (const std::vector<Poison>& poisons :
           {std::vector<Poison>{{"nan in q", 0, 2, nan}},
            {{"nan in k", 1, 100, nan}},
            {{"ones in q", 0, 1, all_ones}},
            {{"ones in k", 1, 147, all_ones}},
            {{"positive q", 0, 2, 1e30F}, {"one positive score", 1, 149, 1e30F}},
            {{"positive q", 0, 2, 1e30F}, {"one negative score", 1, 149, -1e30F}},
            {{"positive q", 0, 1, 1e30F}, {"all scores negative", 1, -1, -1e30F}}}) {
        CasesOf<Attention> c;
        const OpCase k = good(c, "poisoned", op, s);
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          auto values = testing::fill_inputs(k, dtype);
          for (const Poison& p : poisons) {
            testing::Numbers& x = values[p.input];
            const int64_t width = (p.input == 0 ? s.H : s.K) * s.D;
            const int64_t rows = p.input == 0 ? s.S : s.T;
            for (int64_t r = 0; r < rows; ++r) {
              if (p.row >= 0 && r != p.row) continue;
              std::fill_n(x.begin() + r * width, s.D, static_cast<double>(p.value));
            }
          }
          const auto types = testing::types_as(k, dtype);
          const auto want = testing::run_op(k, types, values, {.reference_only = true});
          const auto got = testing::run_op(k, types, values);
          for (size_t out = 0; out < want.size(); ++out) {
            EXPECT_EQ(nans_of(got[out]), nans_of(want[out]))
                << poisons.back().name << ", " << k.rules->describe(k.op.get()) << ", " << s.S
                << " queries, " << name_of(dtype) << ", output " << out;
          }
        }
      }
    }
  }
}

// What is not finite in the forward, or in its statistics, leaves no gradient finite that the
// reference does not.
TEST(AttentionOp, fast_gradients_are_nan_where_those_of_the_reference_are) {
  const Sizes s{1, 70, 70, 2, 1, 16};
  for (const double cap : {0.0, 20.0}) {
    CasesOf<AttentionGrad> c;
    const OpCase k = good_grad(c, "poisoned", {.forward = {.cap = cap}}, s);
    for (const size_t input : {0U, 1U, 4U, 5U}) {
      auto values = testing::fill_inputs(k, DType::kF32);
      values[input][21] = std::numeric_limits<double>::quiet_NaN();
      const auto want = testing::run_op(k, k.in, values, {.reference_only = true});
      const auto got = testing::run_op(k, k.in, values);
      for (size_t out = 0; out < want.size(); ++out) {
        int count = 0;
        for (size_t i = 0; i < want[out].size(); ++i) {
          if (std::isnan(want[out][i]) && !std::isnan(got[out][i])) ++count;
        }
        EXPECT_EQ(count, 0) << "cap " << cap << ", input " << input << ", output " << out;
      }
    }
  }
}

TEST(AttentionOp, the_mask_of_a_shard_of_heads_is_a_part_of_the_whole) {
  const Sizes s{.B = 2, .S = 5, .T = 5, .H = 4, .K = 4, .D = 8};
  CasesOf<Attention> c;
  const Attention op{.dropout_p = 0.4, .seed = 3, .stream = 1};
  const OpCase whole = good(c, "whole", op, s);
  auto values = testing::fill_inputs(whole, DType::kF32);
  const auto want = testing::run_op(whole, whole.in, values);
  Attention shard = op;
  shard.first_head = 2;
  for (size_t i = 0; i < 3; ++i) values[i] = rows_of_heads(values[i], s, 2);
  const OpCase half = good(c, "half", shard, {.B = 2, .S = 5, .T = 5, .H = 2, .K = 2, .D = 8});
  EXPECT_EQ(testing::run_op(half, half.in, values)[0], rows_of_heads(want[0], s, 2));
}

}  // namespace

template <>
OpCases cases_of<Attention>() {
  CasesOf<Attention> c;
  good(c, "plain", {}, {2, 7, 7, 4, 4, 8}).flops = 4.0 * 2 * 4 * 8 * 28;
  good(c, "grouped 4 over 2", {}, {1, 33, 33, 4, 2, 16}).flops = 4.0 * 4 * 16 * 561;
  good(c, "grouped 6 over 1", {.scale = 0.3F}, {2, 16, 16, 6, 1, 8});
  good(c, "not causal", {.causal = false}, {2, 5, 9, 2, 1, 8}).flops = 4.0 * 2 * 2 * 8 * 45;
  good(c, "causal suffix", {}, {1, 5, 40, 2, 2, 8}).flops = 4.0 * 2 * 8 * (5 * 35 + 15);
  good(c, "one token", {}, {3, 1, 1, 2, 2, 64});
  good(c, "several blocks", {}, {1, 200, 200, 2, 1, 64}).gradient_of = {0};
  good(c, "head dim 80", {}, {1, 70, 70, 2, 2, 80}).gradient_of = {1};
  good(c, "head dim 128", {}, {1, 66, 66, 1, 1, 128}).gradient_of = {2};
  good(c, "odd head dim", {}, {1, 6, 6, 3, 3, 7});
  good(c, "dropout", {.dropout_p = 0.2, .seed = 5, .stream = 2}, {3, 33, 33, 2, 1, 16});
  good(c, "packed", {.packed_kv_heads = 4}, {2, 33, 33, 4, 4, 16}).flops = 4.0 * 2 * 4 * 16 * 561;
  good(c, "packed 4 over 2", {.packed_kv_heads = 2}, {1, 70, 70, 4, 2, 64}).gradient_of = {0};
  good(c, "packed, odd head dim", {.packed_kv_heads = 1}, {2, 6, 6, 3, 1, 7});
  good(c, "packed, not causal", {.causal = false, .packed_kv_heads = 1}, {2, 9, 9, 2, 1, 8});
  good(c, "packed, dropout", {.dropout_p = 0.2, .seed = 5, .packed_kv_heads = 1},
       {3, 33, 33, 2, 1, 16});
  good(c, "packed, one token", {.packed_kv_heads = 2}, {3, 1, 1, 2, 2, 64});
  good(c, "decode", {.has_length = true}, {2, 1, 90, 4, 2, 64}, {71});
  good(c, "decode, lengths differ", {.has_length = true}, {2, 1, 300, 6, 1, 128}, {300, 5});
  good(c, "decode, odd heads", {.has_length = true}, {2, 1, 700, 7, 1, 80}, {641, 700});
  good(c, "decode, wide heads", {.has_length = true}, {1, 1, 140, 3, 1, 200}, {133});
  good(c, "decode, a head each", {.has_length = true}, {1, 1, 520, 3, 3, 128}, {1});
  good(c, "prefill", {.has_length = true}, {2, 70, 100, 4, 2, 64}, {75});
  good(c, "context by all-gather", {}, {2, 24, 24, 4, 2, 8});
  good(c, "context by all-gather, plain", {.zigzag = false}, {2, 24, 24, 4, 2, 8});
  good(c, "context by ring", {.context = ContextMethod::kRing}, {2, 24, 24, 4, 2, 8});
  good(c, "context by ring, plain", {.context = ContextMethod::kRing, .zigzag = false},
       {2, 24, 24, 4, 2, 8});
  good(c, "context by Ulysses", {.context = ContextMethod::kUlysses}, {2, 24, 24, 4, 2, 8});
  good(c, "context by Ulysses, plain", {.context = ContextMethod::kUlysses, .zigzag = false},
       {2, 24, 24, 5, 1, 8});
  const Attention drops{.dropout_p = 0.3, .seed = 4};
  good(c, "context and dropout", drops, {2, 24, 24, 4, 2, 8});
  for (const ContextMethod method : {ContextMethod::kRing, ContextMethod::kUlysses}) {
    Attention op = drops;
    op.context = method;
    good(c, fmt::format("context {} and dropout", static_cast<int>(method)), op,
         {2, 24, 24, 4, 2, 8});
  }
  good(c, "window", {.window = 3}, {2, 9, 9, 4, 2, 8}).flops = 4.0 * 2 * 4 * 8 * (6 + 6 * 3);
  good(c, "window of one key", {.window = 1}, {1, 5, 5, 2, 2, 8});
  good(c, "window of all keys", {.window = 12}, {1, 12, 12, 2, 2, 8}).flops = 4.0 * 2 * 8 * 78;
  good(c, "window over blocks", {.window = 70}, {1, 200, 200, 2, 1, 64}).gradient_of = {1};
  good(c, "window, suffix", {.window = 20}, {1, 9, 90, 2, 1, 16}).flops = 4.0 * 2 * 16 * 9 * 20;
  good(c, "window, odd head dim", {.window = 4}, {1, 11, 11, 3, 3, 7});
  good(c, "window, dropout", {.window = 9, .dropout_p = 0.2, .seed = 5}, {2, 33, 33, 2, 1, 16});
  good(c, "window, packed", {.window = 40, .packed_kv_heads = 2}, {2, 70, 70, 4, 2, 16})
      .gradient_of = {0};
  good(c, "window, decode", {.window = 30, .has_length = true}, {2, 1, 300, 6, 1, 128}, {300, 5});
  good(c, "window, prefill", {.window = 50, .has_length = true}, {2, 70, 200, 4, 2, 64}, {175});
  for (const ContextMethod method :
       {ContextMethod::kAllGather, ContextMethod::kRing, ContextMethod::kUlysses}) {
    good(c, fmt::format("window, context {}", static_cast<int>(method)),
         {.window = 5, .context = method}, {2, 24, 24, 4, 2, 8});
  }
  // Scores of queries four times as large come near the cap.
  const auto capped = [&](const std::string& name, const Attention& op, const Sizes& s,
                          std::vector<int64_t> last = {}) -> OpCase& {
    OpCase& added = good(c, "cap, " + name, op, s, std::move(last));
    added.fill[0] = {.scale = 4.0};
    return added;
  };
  capped("plain", {.cap = 2.0}, {2, 7, 7, 4, 2, 8});
  capped("window over blocks", {.window = 70, .cap = 5.0}, {1, 200, 200, 2, 1, 64}).gradient_of = {
      0};
  capped("odd head dim", {.cap = 1.5}, {1, 6, 6, 3, 3, 7});
  capped("packed, dropout, scale",
         {.scale = 0.3F, .cap = 3.0, .dropout_p = 0.2, .packed_kv_heads = 2},
         {2, 33, 33, 4, 2, 16});
  capped("decode", {.cap = 2.0, .has_length = true}, {2, 1, 90, 4, 2, 64}, {71});
  capped("decode, window, wide heads", {.window = 130, .cap = 3.0, .has_length = true},
         {2, 1, 300, 6, 1, 200}, {300, 5});
  capped("prefill", {.window = 50, .cap = 2.0, .has_length = true}, {2, 70, 200, 4, 2, 64}, {175});
  capped("by ring", {.cap = 2.0, .context = ContextMethod::kRing}, {2, 24, 24, 4, 2, 8});
  c.bad("a cap below zero", {.cap = -1.0}, operands({1, 4, 4, 2, 2, 8}));
  c.bad("window without a causal mask", {.causal = false, .window = 3},
        operands({1, 4, 4, 2, 2, 8}));
  c.bad("packed heads not divisible", {.packed_kv_heads = 3}, {f32({1, 4, 10, 8})});
  c.bad("packed without queries", {.packed_kv_heads = 3}, {f32({1, 4, 6, 8})});
  c.bad("heads not divisible", {}, operands({1, 4, 4, 4, 3, 8}));
  c.bad("head dims differ", {}, {f32({1, 4, 2, 8}), f32({1, 4, 2, 16}), f32({1, 4, 2, 16})});
  c.bad("v shorter than k", {}, {f32({1, 4, 2, 8}), f32({1, 4, 2, 8}), f32({1, 3, 2, 8})});
  c.bad("more causal queries than keys", {}, operands({1, 5, 4, 2, 2, 8}));
  c.bad("no length", {.has_length = true}, operands({1, 4, 4, 2, 2, 8}));
  c.bad("no rows", {.dropout_p = 0.1}, operands({1, 4, 4, 2, 2, 8}));
  return c.cases;
}

template <>
OpCases cases_of<AttentionGrad>() {
  CasesOf<AttentionGrad> c;
  good_grad(c, "plain", {}, {2, 12, 12, 6, 6, 8}).flops = 10.0 * 2 * 6 * 8 * 78;
  good_grad(c, "grouped 4 over 2", {}, {1, 33, 33, 4, 2, 16}).flops = 10.0 * 4 * 16 * 561;
  good_grad(c, "grouped 6 over 1", {.has_dlse = true}, {2, 16, 16, 6, 1, 8});
  good_grad(c, "not causal", {.forward = {.causal = false}}, {2, 5, 9, 2, 1, 8});
  good_grad(c, "causal suffix", {}, {1, 5, 80, 2, 2, 8});
  good_grad(c, "long causal suffix", {}, {2, 512, 1030, 2, 1, 16});
  good_grad(c, "one token", {}, {3, 1, 1, 2, 2, 64});
  good_grad(c, "several blocks", {.has_dlse = true}, {1, 200, 200, 2, 1, 64});
  good_grad(c, "head dim 80", {}, {1, 70, 70, 2, 2, 80});
  good_grad(c, "head dim 128", {}, {1, 66, 66, 1, 1, 128});
  good_grad(c, "odd head dim", {}, {1, 6, 6, 3, 3, 7});
  good_grad(c, "packed", {.forward = {.packed_kv_heads = 4}}, {2, 33, 33, 4, 4, 16}).flops =
      10.0 * 2 * 4 * 16 * 561;
  good_grad(c, "packed 4 over 2", {.forward = {.packed_kv_heads = 2}}, {1, 70, 70, 4, 2, 64});
  good_grad(c, "packed, of lse too", {.forward = {.packed_kv_heads = 1}, .has_dlse = true},
            {2, 40, 40, 3, 1, 128});
  good_grad(c, "packed, odd head dim", {.forward = {.packed_kv_heads = 1}}, {2, 6, 6, 3, 1, 7});
  good_grad(c, "packed, dropout", {.forward = {.dropout_p = 0.2, .seed = 5, .packed_kv_heads = 1}},
            {3, 71, 71, 2, 1, 16});
  good_grad(c, "dropout", {.forward = {.dropout_p = 0.2, .seed = 5}}, {3, 71, 71, 2, 1, 16});
  for (const ContextMethod method :
       {ContextMethod::kAllGather, ContextMethod::kRing, ContextMethod::kUlysses}) {
    for (const bool zigzag : {true, false}) {
      for (const double p : {0.0, 0.3}) {
        const Attention op{.dropout_p = p, .seed = 4, .context = method, .zigzag = zigzag};
        good_grad(
            c, fmt::format("context {}{} {}", static_cast<int>(method), zigzag ? "" : " plain", p),
            {.forward = op}, {2, 24, 24, 4, zigzag ? 2 : 4, 8});
      }
    }
  }
  good_grad(c, "window", {.forward = {.window = 3}}, {2, 12, 12, 6, 6, 8}).flops =
      10.0 * 2 * 6 * 8 * (6 + 9 * 3);
  good_grad(c, "window over blocks", {.forward = {.window = 70}}, {1, 200, 200, 2, 1, 64});
  good_grad(c, "window, suffix", {.forward = {.window = 20}}, {1, 30, 90, 2, 1, 16});
  good_grad(c, "window, odd head dim", {.forward = {.window = 4}}, {1, 11, 11, 3, 3, 7});
  good_grad(c, "window, packed, dropout",
            {.forward = {.window = 40, .dropout_p = 0.2, .seed = 5, .packed_kv_heads = 1}},
            {2, 71, 71, 2, 1, 16});
  for (const ContextMethod method :
       {ContextMethod::kAllGather, ContextMethod::kRing, ContextMethod::kUlysses}) {
    for (const bool zigzag : {true, false}) {
      good_grad(
          c, fmt::format("window, context {}{}", static_cast<int>(method), zigzag ? "" : " plain"),
          {.forward =
               {.window = 5, .dropout_p = 0.3, .seed = 4, .context = method, .zigzag = zigzag}},
          {2, 24, 24, 4, 2, 8});
    }
  }
  good_grad(c, "cap", {.forward = {.cap = 2.0}}, {2, 12, 12, 6, 3, 8});
  good_grad(c, "cap, window over blocks", {.forward = {.window = 70, .cap = 5.0}, .has_dlse = true},
            {1, 200, 200, 2, 1, 64});
  good_grad(c, "cap, packed, dropout, odd head dim",
            {.forward = {.cap = 1.5, .dropout_p = 0.2, .seed = 5, .packed_kv_heads = 1}},
            {2, 71, 71, 3, 1, 7});
  c.bad("over a length", {.forward = {.has_length = true}}, operands({1, 4, 4, 2, 2, 8}));
  const TensorType x = f32({1, 4, 2, 8});
  c.bad("lse of other dims", {}, {x, x, x, x, f32({1, 4, 2}), x});
  return c.cases;
}

}  // namespace tokamak
