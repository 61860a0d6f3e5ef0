#include "tokamak/ops/collective.h"

#include <gtest/gtest.h>

#include "tokamak/graph/passes.h"
#include "tokamak/ops/op_case.h"

namespace tokamak {
namespace {

constexpr CommGroup kAlone{.id = 0};
constexpr CommGroup kThree{.id = 0, .size = 3, .rank = 1};
constexpr CommGroup kPair{.id = 0, .size = 2, .rank = 1};

template <class T>
void good(CasesOf<T>& c, const std::string& name, T op, const Types& in) {
  c.good(name, std::move(op), in).check_gradient = false;
}

double bytes_sent(const auto& op, const Types& in) {
  return op.cost(in, op.infer(in)).bytes_sent;
}

TEST(Collectives, cost_by_the_closed_forms) {
  const Types piece{f32({5, 6})};
  const Types rows{f32({3, 5, 6})};
  EXPECT_EQ(bytes_sent(AllGather{.group = kThree}, piece), 2 * 30 * 4);
  EXPECT_EQ(bytes_sent(ReduceScatter{.group = kThree}, rows), 2 * 30 * 4);
  EXPECT_EQ(bytes_sent(AllReduce{.group = kThree}, piece), 2 * 2 * 30 * 4 / 3);
  EXPECT_EQ(bytes_sent(AllToAll{.group = kThree}, rows), 2 * 30 * 4);
  EXPECT_EQ(bytes_sent(Shift{.group = kThree, .offset = 2}, piece), 30 * 4);
  EXPECT_EQ(bytes_sent(Shift{.group = kThree, .offset = 3}, piece), 0);
  EXPECT_EQ(bytes_sent(Send{.group = kPair}, piece), 30 * 4);
  EXPECT_EQ(bytes_sent(Recv{.group = kPair, .type = piece[0]}, {}), 0);
}

TEST(Collectives, sends_and_receives_are_never_dead) {
  StateTable states;
  Graph graph(states);
  const Value x =
      graph.read(states.declare({.name = "x", .type = f32({2}), .kind = StateKind::kInput}));
  graph.add(Send{.group = kPair}, {x});
  graph.add(Recv{.group = kPair, .type = f32({2})}, {});
  graph.add(AllReduce{.group = kThree}, {x});
  const Graph live = eliminate_dead(graph);
  ASSERT_EQ(live.size(), 3);
  EXPECT_NE(live.node(1).as<Send>(), nullptr);
  EXPECT_NE(live.node(2).as<Recv>(), nullptr);
}

}  // namespace

template <>
OpCases cases_of<AllGather>() {
  CasesOf<AllGather> c;
  good(c, "alone", {.group = kAlone}, {f32({4, 3})});
  good(c, "tokens", {.group = kAlone}, {i32({5})});
  c.bad("no such member", {.group = {.id = 0, .size = 2, .rank = 2}}, {f32({4, 3})});
  return c.cases;
}

template <>
OpCases cases_of<ReduceScatter>() {
  CasesOf<ReduceScatter> c;
  good(c, "alone", {.group = kAlone}, {f32({1, 4, 3})});
  c.bad("rows for other ranks", {.group = kThree}, {f32({2, 4})});
  c.bad("sums of tokens", {.group = kAlone}, {i32({1, 4})});
  return c.cases;
}

template <>
OpCases cases_of<AllReduce>() {
  CasesOf<AllReduce> c;
  good(c, "alone", {.group = kAlone}, {f32({4, 3})});
  good(c, "maximum", {.group = kAlone, .op = ReduceOp::kMax}, {f32({7})});
  c.bad("sums of tokens", {.group = kAlone}, {i32({4})});
  return c.cases;
}

template <>
OpCases cases_of<AllToAll>() {
  CasesOf<AllToAll> c;
  good(c, "alone", {.group = kAlone}, {f32({1, 4, 3})});
  c.bad("rows for other ranks", {.group = kThree}, {f32({4, 3})});
  return c.cases;
}

template <>
OpCases cases_of<Shift>() {
  CasesOf<Shift> c;
  good(c, "alone", {.group = kAlone}, {f32({4, 3})});
  c.bad("two values", {.group = kThree}, {f32({4}), f32({4})});
  return c.cases;
}

template <>
OpCases cases_of<Send>() {
  CasesOf<Send> c;
  good(c, "pair", {.group = kPair}, {f32({4, 3})});
  c.bad("to a group of three", {.group = kThree}, {f32({4})});
  return c.cases;
}

template <>
OpCases cases_of<Recv>() {
  CasesOf<Recv> c;
  good(c, "pair", {.group = kPair, .type = f32({4, 3})}, {});
  c.bad("in a group of three", {.group = kThree, .type = f32({4})}, {});
  return c.cases;
}

}  // namespace tokamak
