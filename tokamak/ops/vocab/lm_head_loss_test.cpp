#include "tokamak/ops/vocab/lm_head_loss.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tokamak/graph/passes.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/test_op_case.h"
#include "tokamak/ops/test_op_runner.h"

namespace tokamak {
namespace {

constexpr int64_t kIgnored = -100;

Types head_types(Dims tokens, int64_t D, int64_t V) {
  Dims x = tokens;
  x.push_back(D);
  return {f32(x), f32({V, D}), i32(std::move(tokens)), f32({1})};
}

OpCase& add(CasesOf<LmHeadLoss>& c, const std::string& name, const LmHeadLoss& op, const Types& in,
            Fill labels) {
  OpCase& added = c.good(name, op, in);
  added.fill = {{}, {.scale = 0.5}, std::move(labels), {.scale = 0.1, .shift = 0.5}};
  added.float_stays = {3};
  added.check_gradient = false;
  return added;
}

}  // namespace

template <>
OpCases cases_of<LmHeadLoss>() {
  CasesOf<LmHeadLoss> c;
  const Types small = head_types({2, 6}, 8, 21);
  add(c, "one chunk", {}, small, {.limit = 21}).flops = 6.0 * 12 * 8 * 21;
  add(c, "even chunks", {.chunk_rows = 4}, small, {.limit = 21});
  add(c, "uneven last chunk", {.chunk_rows = 5}, small, {.values = {0, 20, 3}});
  add(c, "single rows", {.chunk_rows = 1}, head_types({6}, 8, 21), {.limit = 21});
  add(c, "some ignored", {.chunk_rows = 5}, small, {.values = {kIgnored, 20, 0}});
  add(c, "one valid", {.chunk_rows = 5}, small,
      {.values = {kIgnored, 4, kIgnored, kIgnored, kIgnored, kIgnored, kIgnored, kIgnored, kIgnored,
                  kIgnored, kIgnored, kIgnored}});
  add(c, "all ignored", {.chunk_rows = 5}, small, {.values = {kIgnored}});
  add(c, "gathered logits", {.chunk_rows = 5, .gather_logits = true}, small, {.limit = 21});
  add(c, "loss only", {.chunk_rows = 5, .with_gradient = false}, small, {.limit = 21}).flops =
      2.0 * 12 * 8 * 21;
  add(c, "padded columns", {.chunk_rows = 5, .column_multiple = 32}, small, {.limit = 21});
  add(c, "padded columns of the loss only",
      {.chunk_rows = 5, .column_multiple = 32, .with_gradient = false}, small, {.limit = 21});
  add(c, "capped", {.chunk_rows = 5, .cap = 1.5}, small, {.limit = 21});
  add(c, "capped, padded columns", {.chunk_rows = 5, .column_multiple = 32, .cap = 1.5}, small,
      {.limit = 21});
  c.bad("no multiple", {.column_multiple = 0}, small);
  c.bad("widths differ", {}, {f32({6, 8}), f32({21, 9}), i32({6}), f32({1})});
  c.bad("labels of another shape", {}, {f32({2, 3, 8}), f32({21, 8}), i32({6}), f32({1})});
  return c.cases;
}

namespace testing {
namespace {

TEST(LmHeadLoss, gradients_equal_central_differences_of_the_loss) {
  for (const double cap : {0.0, 1.5}) {
    CasesOf<LmHeadLoss> c;
    const OpCase& head = add(c, "differences", {.chunk_rows = 5, .cap = cap},
                             head_types({2, 6}, 4, 9), {.values = {kIgnored, 8, 0, 3, 5}});
    const Types in = types_as(head, DType::kF64);
    auto values = fill_inputs(head, DType::kF64);
    const auto out = run_op(head, in, values, {.reference_only = true});
    for (const size_t input : {0U, 1U}) {
      const Numbers& gradient = out[input + 1];
      for (size_t j = 0; j < gradient.size(); j += 5) {
        const double h = 1e-5;
        const double at = values[input][j];
        const auto loss = [&](double x) {
          values[input][j] = x;
          return run_op(head, in, values, {.reference_only = true})[0][0];
        };
        const double want = (loss(at + h) - loss(at - h)) / (2.0 * h);
        values[input][j] = at;
        EXPECT_NEAR(gradient[j], want, 1e-8) << "input " << input << " element " << j;
      }
    }
  }
}

// Zero rows after w add nothing to any sum, so only the order of additions may change.
TEST(LmHeadLoss, padded_columns_change_nothing) {
  for (const double shift : {0.0, -40.0}) {
    CasesOf<LmHeadLoss> c;
    const Types in = head_types({2, 6}, 8, 21);
    const Fill labels{.values = {kIgnored, 20, 0, 3, 5}};
    const OpCase& plain = add(c, "plain", {.chunk_rows = 5}, in, labels);
    auto values = fill_inputs(plain, DType::kF64);
    for (double& x : values[0]) x += shift;
    for (double& w : values[1]) w = std::abs(w);  // all logits far below the 0 of the padding
    const auto want = run_op(plain, types_as(plain, DType::kF64), values);
    const OpCase& padded = add(c, "padded", {.chunk_rows = 5, .column_multiple = 128}, in, labels);
    const auto got = run_op(padded, types_as(padded, DType::kF64), values);
    for (size_t k = 0; k < want.size(); ++k) {
      ASSERT_EQ(got[k].size(), want[k].size());
      for (size_t i = 0; i < want[k].size(); ++i)
        EXPECT_NEAR(got[k][i], want[k][i], 1e-12 * (1.0 + std::abs(want[k][i])))
            << "output " << k << " element " << i;
    }
  }
}

TEST(LmHeadLoss, pads_columns_that_are_no_whole_words) {
  for (const auto& [V, width] : {std::pair<int64_t, int64_t>{50, 128}, {52, 52}, {130, 256}}) {
    StateTable states;
    Graph graph(states);
    const auto leaf = [&](const char* name, TensorType type, StateKind kind) {
      return graph.read(states.declare({.name = name, .type = std::move(type), .kind = kind}));
    };
    const Types in = head_types({2, 300}, 8, V);
    const auto out = graph.add(
        LmHeadLoss{.chunk_rows = 128, .column_multiple = 128},
        {leaf("x", in[0], StateKind::kInput), leaf("w", in[1], StateKind::kInput),
         leaf("labels", in[2], StateKind::kInput), leaf("scale", in[3], StateKind::kInput)});
    graph.accumulate(out[2], leaf("dw", in[1], StateKind::kResult),
                     AccumulateMode::kFirstMicrobatch);
    const Graph expanded = expand_composites(graph);
    int products = 0;
    for (int32_t i = 0; i < expanded.size(); ++i) {
      const Node& node = expanded.node(i);
      if (node.as<LinearGradWeight>() == nullptr) continue;
      EXPECT_EQ(node.out[0].dims, (Dims{width, 8}));
      EXPECT_EQ(expanded.type(node.in[1]).dims[1], width);
      ++products;
    }
    EXPECT_EQ(products, 5);
  }
}

TEST(LmHeadLoss, never_holds_the_logits_of_all_tokens) {
  StateTable states;
  Graph graph(states);
  const auto leaf = [&](const char* name, TensorType type) {
    return graph.read(
        states.declare({.name = name, .type = std::move(type), .kind = StateKind::kInput}));
  };
  const Types in = head_types({2, 300}, 8, 50);
  graph.roots =
      graph.add(LmHeadLoss{.chunk_rows = 128},
                {leaf("x", in[0]), leaf("w", in[1]), leaf("labels", in[2]), leaf("scale", in[3])});
  const Graph expanded = expand_composites(graph);
  for (int32_t i = 0; i < expanded.size(); ++i) {
    EXPECT_EQ(expanded.node(i).label, Label{});
    for (const TensorType& type : expanded.node(i).out) EXPECT_LE(type.numel(), 128 * 50);
  }
}

}  // namespace
}  // namespace testing
}  // namespace tokamak
