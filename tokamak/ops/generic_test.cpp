// What every op must satisfy, run over every case of every op (op_case.h).
#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "tokamak/core/random.h"
#include "tokamak/ops/float8/test_apart.h"
#include "tokamak/ops/table.h"
#include "tokamak/ops/test_op_runner.h"

namespace tokamak {

namespace testing {
namespace {

// An update in place may write a part of its output.
bool is_updated_in_place(const OpCase& c, int out) {
  if (c.writes_part && out == 0) return true;
  const auto aliases = c.rules->aliases(c.op.get());
  return std::any_of(aliases.begin(), aliases.end(),
                     [&](const Alias& a) { return a.must && a.out == out; });
}

class Ops : public ::testing::TestWithParam<OpCase> {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    const bool runs = !std::string_view(test->name()).starts_with("price");
    if (runs && c().rules->has_side_effect) GTEST_SKIP() << "speaks to another rank";
  }

  const OpCase& c() const { return GetParam(); }
};

// Fast fp32 and bf16 kernels against the reference in double on the same (rounded) inputs.
TEST_P(Ops, agrees_with_the_reference_in_double) {
  for (const auto& [dtype, bound] : {std::pair{DType::kF32, 2e-6}, std::pair{DType::kBF16, 6e-3}}) {
    const auto values = fill_inputs(c(), dtype);
    const auto want = run_op(c(), types_as(c(), DType::kF64), values, {.reference_only = true});
    for (const bool reference_only : {false, true}) {
      const auto got =
          run_op(c(), types_as(c(), dtype), values, {.reference_only = reference_only});
      ASSERT_EQ(got.size(), want.size());
      for (size_t k = 0; k < got.size(); ++k) {
        EXPECT_LT(relative_error(got[k], want[k]), std::max(bound, c().bound))
            << name_of(dtype) << " output " << k << (reference_only ? " reference" : " chosen");
      }
    }
  }
}

TEST_P(Ops, gradient_rule_equals_central_differences) {
  if (!c().check_gradient) GTEST_SKIP() << "no gradient";
  const Types in = types_as(c(), DType::kF64);
  auto values = fill_inputs(c(), DType::kF64);
  const auto out = run_op(c(), in, values, {.reference_only = true});
  std::vector<Numbers> dy = out;
  for (size_t k = 0; k < dy.size(); ++k) {
    for (size_t i = 0; i < dy[k].size(); ++i)
      dy[k][i] = normal_quantile(to_uniform(random_u32(2, k, i)));
  }
  const auto value_at = [&] {
    const auto y = run_op(c(), in, values, {.reference_only = true});
    double total = 0.0;
    for (size_t k = 0; k < y.size(); ++k)
      total += std::inner_product(y[k].begin(), y[k].end(), dy[k].begin(), 0.0);
    return total;
  };
  const auto gradient = run_gradient(c(), in, values, dy);
  std::vector<int> checked = c().gradient_of;
  if (checked.empty()) {
    for (int i = 0; i < static_cast<int>(in.size()); ++i) {
      if (in[i].dtype == DType::kF64) checked.push_back(i);
    }
  }
  for (const int input : checked) {
    const auto i = static_cast<size_t>(input);
    ASSERT_FALSE(gradient[i].empty()) << "input " << i << " has no gradient";
    Numbers got;
    Numbers want;
    const size_t step = std::max<size_t>(1, values[i].size() / 24);
    for (size_t j = 0; j < values[i].size(); j += step) {
      const double x = values[i][j];
      const double h = 1e-5 * std::max(1.0, std::abs(x));
      values[i][j] = x + h;
      const double up = value_at();
      values[i][j] = x - h;
      const double down = value_at();
      values[i][j] = x;
      want.push_back((up - down) / (2.0 * h));
      got.push_back(gradient[i][j]);
    }
    EXPECT_LT(relative_error(got, want), 1e-6) << "input " << i;
  }
}

// Prices read these fields of each kind of work: an op that forgot one would be priced as other
// work.
void expect_stated(const OpRules& rules, const Cost& cost) {
  EXPECT_EQ(cost.kind == Cost::Kind::kUnstated, rules.is_view);
  EXPECT_EQ(cost.kind == Cost::Kind::kCollective, rules.is_communication);
  if (rules.is_composite) return;  // its parts have prices, it has none
  EXPECT_EQ(cost.kind == Cost::Kind::kGemm, cost.product.has_value());
  EXPECT_EQ(cost.kind == Cost::Kind::kAttention, cost.attention.has_value());
  EXPECT_EQ(cost.kind == Cost::Kind::kCollective, cost.collective.has_value());
  if (cost.kind == Cost::Kind::kGemm) {
    EXPECT_EQ(cost.flops, 2.0 * static_cast<double>(cost.m * cost.n * cost.k));
    EXPECT_EQ(cost.row_widths & cost.n, cost.n) << "elements of the result's rows";
  }
  if (cost.attention) {
    EXPECT_GT(cost.attention->heads * cost.attention->head_dim, 0);
    EXPECT_LE(cost.attention->pairs,
              static_cast<double>(cost.attention->queries * cost.attention->keys));
  }
}

TEST_P(Ops, price_is_sane) {
  const Types in = c().in;
  const Types out = c().rules->infer(c().op.get(), in);
  const Cost cost = c().rules->cost(c().op.get(), in, out);
  expect_stated(*c().rules, cost);
  EXPECT_GE(cost.flops, 0.0);
  if (c().flops >= 0.0) {
    EXPECT_EQ(cost.flops, c().flops);
  }
  if (c().rules->is_view) return;
  double written = 0.0;
  for (size_t k = 0; k < out.size(); ++k) {
    if (!is_updated_in_place(c(), static_cast<int>(k)))
      written += static_cast<double>(out[k].bytes());
  }
  EXPECT_GE(cost.bytes_written, written);
  EXPECT_EQ(cost.bytes_read > 0.0, !in.empty());
}

TEST_P(Ops, same_bits_twice) {
  const auto values = fill_inputs(c(), DType::kF32);
  const auto once = run_op(c(), types_as(c(), DType::kF32), values);
  const auto again = run_op(c(), types_as(c(), DType::kF32), values);
  EXPECT_EQ(once, again);
}

// The passes fuse again what is apart, or leave it so.
TEST_P(Ops, fused_and_apart_give_the_same_bits) {
  const auto parts = apart(c());
  if (!parts) GTEST_SKIP() << "not fused";
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto values = fill_inputs(c(), dtype);
    const Types in = types_as(c(), dtype);
    const auto want = run_op(*parts, in, values, {.fuses_readers = false});
    EXPECT_EQ(run_op(c(), in, values), want) << name_of(dtype);
    EXPECT_EQ(run_op(*parts, in, values), want) << name_of(dtype);
  }
}

TEST_P(Ops, accumulates_over_microbatches) {
  const auto outs = c().rules->accumulates(c().op.get());
  if (outs.empty()) GTEST_SKIP() << "no accumulating output";
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto values = fill_inputs(c(), dtype);
    const Types in = types_as(c(), dtype);
    const auto once = run_op(c(), in, values, {.accumulate = true});
    const auto plain = run_op(c(), in, values);
    for (const bool reference_only : {false, true}) {
      const auto thrice = run_op(
          c(), in, values, {.reference_only = reference_only, .accumulate = true, .repeats = 3});
      for (const int k : outs) {
        // The result State accumulates too: 1 + 2 + 3 times the plain output.
        const auto i = static_cast<size_t>(k);
        Numbers want = plain[i];
        for (double& x : want) x *= c().keeps_greater ? 3.0 : 6.0;
        const DType stored = c().rules->infer(c().op.get(), in)[i].dtype;
        EXPECT_LT(relative_error(thrice[i], want), accumulation_bound(stored))
            << name_of(dtype) << " output " << k;
        EXPECT_LT(relative_error(once[i], plain[i]), 1e-6) << name_of(dtype) << " output " << k;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Ops, ::testing::ValuesIn(all_cases().good),
                         [](const auto& of) { return test_name(of.param.rules, of.param.name); });

class BadInputs : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadInputs, are_refused_by_name) {
  const BadCase& c = GetParam();
  try {
    c.rules->infer(c.op.get(), c.in);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(c.rules->name), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(All, BadInputs, ::testing::ValuesIn(all_cases().bad),
                         [](const auto& of) { return test_name(of.param.rules, of.param.name); });

TEST(OpList, every_op_has_a_good_and_a_bad_case) {
  const OpCases all = all_cases();
  for (const OpRules* rules : all_rules()) {
    EXPECT_TRUE(std::any_of(all.good.begin(), all.good.end(), [&](const OpCase& c) {
      return c.rules == rules;
    })) << rules->name;
    EXPECT_TRUE(std::any_of(all.bad.begin(), all.bad.end(), [&](const BadCase& c) {
      return c.rules == rules;
    })) << rules->name;
  }
}

}  // namespace
}  // namespace testing
}  // namespace tokamak
