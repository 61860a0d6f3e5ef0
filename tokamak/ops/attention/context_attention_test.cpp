#include "tokamak/ops/attention/context_attention.h"

#include <gtest/gtest.h>

#include "tokamak/graph/passes.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/test_op_case.h"

namespace tokamak {
namespace {

constexpr CommGroup kOneRank{.id = 0};

constexpr std::array kMethods{ContextMethod::kAllGather, ContextMethod::kRing,
                              ContextMethod::kUlysses};

Types operands(int64_t B, int64_t S, int64_t H, int64_t K, int64_t D) {
  return {f32({B, S, H, D}), f32({B, S, K, D}), f32({B, S, K, D})};
}

Types grad_operands(int64_t B, int64_t S, int64_t H, int64_t K, int64_t D) {
  Types in = operands(B, S, H, K, D);
  in.push_back(in[0]);
  in.push_back(f32({B, H, S}));
  in.push_back(in[0]);
  return in;
}

// What each rank computes: flops of the expansion, by rank.
template <class T>
std::vector<double> flops_by_rank(const T& op, const Types& in, int size) {
  std::vector<double> all;
  for (int rank = 0; rank < size; ++rank) {
    T mine = op;
    mine.group = {.id = 0, .size = size, .rank = rank};
    StateTable states;
    Graph graph(states);
    std::vector<Value> leaves;
    for (const TensorType& type : in) {
      leaves.push_back(graph.read(states.declare(
          {.name = fmt::format("in{}", leaves.size()), .type = type, .kind = StateKind::kInput})));
    }
    graph.roots = graph.add(mine, leaves);
    const Graph expanded = expand_composites(graph);
    double flops = 0.0;
    for (int32_t i = 0; i < expanded.size(); ++i) {
      const Node& n = expanded.node(i);
      if (n.is_leaf()) continue;
      Types types;
      for (const Value v : n.in) types.push_back(expanded.type(v));
      const Cost cost = n.rules->cost(n.op.get(), types, n.out);
      if (cost.kind == Cost::Kind::kAttention) flops += cost.flops;
    }
    all.push_back(flops);
  }
  return all;
}

template <class T>
void expect_equal_work(T op, const Types& in, int size) {
  op.group.size = size;
  const double share = op.cost(in, op.infer(in)).flops;
  EXPECT_EQ(flops_by_rank(op, in, size), std::vector<double>(size, share));
}

TEST(ContextAttention, zigzag_gives_every_rank_the_same_work) {
  for (const ContextMethod method : kMethods) {
    for (const int size : {2, 3}) {
      const Attention a{.context = method};
      expect_equal_work(ContextAttention{.attention = a}, operands(2, 24, 6, 6, 8), size);
      expect_equal_work(ContextAttentionGrad{.attention = a}, grad_operands(2, 24, 6, 6, 8), size);
    }
  }
}

}  // namespace

template <>
OpCases cases_of<ContextAttention>() {
  CasesOf<ContextAttention> c;
  for (const ContextMethod method : kMethods) {
    c.good(fmt::format("alone {}", static_cast<int>(method)),
           {.attention = {.context = method}, .group = kOneRank}, operands(2, 10, 4, 2, 8))
        .check_gradient = false;
  }
  c.bad("odd zigzag", {.group = {.id = 0, .size = 2}}, operands(2, 5, 4, 2, 8));
  c.bad("not causal", {.attention = {.causal = false}}, operands(2, 4, 4, 2, 8));
  c.bad("Ulysses over more ranks than heads",
        {.attention = {.context = ContextMethod::kUlysses}, .group = {.id = 0, .size = 5}},
        operands(2, 4, 4, 2, 8));
  return c.cases;
}

template <>
OpCases cases_of<ContextAttentionGrad>() {
  CasesOf<ContextAttentionGrad> c;
  for (const ContextMethod method : kMethods) {
    OpCase& k = c.good(fmt::format("alone {}", static_cast<int>(method)),
                       {.attention = {.context = method}, .group = kOneRank},
                       grad_operands(2, 10, 4, 2, 8));
    k.check_gradient = false;
    k.fill = {{}, {}, {}, {}, {.shift = 3.0}};
    k.float_stays = {4};
  }
  c.bad("odd zigzag", {.group = {.id = 0, .size = 2}}, grad_operands(2, 5, 4, 2, 8));
  return c.cases;
}

template <>
OpCases cases_of<MergeAttention>() {
  CasesOf<MergeAttention> c;
  const auto good = [&](const std::string& name, int64_t first, int64_t S, int64_t P,
                        int64_t D = 8) {
    OpCase& k = c.good(name, {.first = first},
                       {f32({2, S, 6, D}), f32({2, 6, S}), f32({2, P, 6, D}), f32({2, 6, P})});
    k.check_gradient = false;
    k.float_stays = {0, 1, 3};
  };
  good("all queries", 0, 5, 5);
  good("the back half", 3, 6, 3);
  good("one query", 2, 6, 1);
  good("wide heads", 1, 4, 2, 72);
  c.bad("past the end", {.first = 4},
        {f32({2, 6, 4, 8}), f32({2, 4, 6}), f32({2, 3, 4, 8}), f32({2, 4, 3})});
  return c.cases;
}

}  // namespace tokamak
