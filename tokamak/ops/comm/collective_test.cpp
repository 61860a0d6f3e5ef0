#include "tokamak/ops/comm/collective.h"

#include <array>
#include <numeric>

#include <gtest/gtest.h>

#include "tokamak/comm/test_world.h"
#include "tokamak/graph/passes.h"
#include "tokamak/ops/test_op_runner.h"

namespace tokamak {
namespace {

constexpr CommGroup kAlone{.id = 0};
constexpr CommGroup kThree{.id = 0, .size = 3, .rank = 1};
constexpr CommGroup kPair{.id = 0, .size = 2, .rank = 1};

template <class T>
void good(CasesOf<T>& c, const std::string& name, T op, const Types& in) {
  c.good(name, std::move(op), in).check_gradient = false;
}

double bytes_sent_by(const auto& op, const Types& in) {
  return op.cost(in, op.infer(in)).bytes_sent;
}

TEST(Collectives, cost_by_the_closed_forms) {
  const Types piece{f32({5, 6})};
  const Types rows{f32({3, 5, 6})};
  EXPECT_EQ(bytes_sent_by(AllGather{.group = kThree}, piece), 2 * 30 * 4);
  EXPECT_EQ(bytes_sent_by(ReduceScatter{.group = kThree}, rows), 2 * 30 * 4);
  EXPECT_EQ(bytes_sent_by(AllReduce{.group = kThree}, piece), 2 * 2 * 30 * 4 / 3);
  EXPECT_EQ(bytes_sent_by(AllToAll{.group = kThree}, rows), 2 * 30 * 4);
  EXPECT_EQ(bytes_sent_by(Shift{.group = kThree, .offset = 2}, piece), 30 * 4);
  EXPECT_EQ(bytes_sent_by(Shift{.group = kThree, .offset = 3}, piece), 0);
  EXPECT_EQ(bytes_sent_by(Send{.group = kPair}, piece), 30 * 4);
  EXPECT_EQ(bytes_sent_by(Recv{.group = kPair, .type = piece[0]}, {}), 0);
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

int64_t bytes_sent(const Communicator& comm) {
  const auto& t = comm.traffic();
  return t.all_gather.bytes + t.reduce_scatter.bytes + t.all_reduce.bytes + t.all_to_all.bytes +
         t.broadcast.bytes + t.send.bytes;
}

// One rank of a job in which every rank runs `op` on its own values.
class Rank {
 public:
  explicit Rank(World& world) : group_(world.make_group("all", ranks_of(world))) {}

  CommGroup group() const { return {.id = 0, .size = group_->size(), .rank = group_->rank()}; }

  template <class T>
  std::vector<testing::Numbers> run(const T& op, const Types& in,
                                    const std::vector<testing::Numbers>& values) const {
    CasesOf<T> c;
    const OpCase& k = c.good("run", op, in);
    const int64_t before = bytes_sent(*group_);
    Communicator* const groups[] = {group_.get()};
    auto out = testing::run_op(k, in, values, {.threads = 1, .groups = groups});
    EXPECT_EQ(static_cast<double>(bytes_sent(*group_) - before),
              op.cost(in, op.infer(in)).bytes_sent)
        << T::kName;
    return out;
  }

 private:
  static std::vector<int> ranks_of(const World& world) {
    std::vector<int> ranks(world.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  std::unique_ptr<Communicator> group_;
};

// hundreds: the rank; tens: the row; ones: the element.
testing::Numbers rows_of(double rank, const std::vector<double>& rows) {
  testing::Numbers x;
  for (const double row : rows) {
    for (const double e : {0.0, 1.0, 2.0}) x.push_back(100 * rank + 10 * row + e);
  }
  return x;
}

TEST(Collectives, move_what_they_say_and_send_what_they_cost) {
  run_ranks(3, [](World& world) {
    const Rank rank(world);
    const CommGroup group = rank.group();
    const double me = group.rank;
    const testing::Numbers own = rows_of(me, {0});
    const testing::Numbers rows = rows_of(me, {0, 1, 2});
    const Types piece{f32({3})};
    const Types all{f32({3, 3})};
    const auto joined = [](testing::Numbers a, const testing::Numbers& b,
                           const testing::Numbers& c) {
      a.insert(a.end(), b.begin(), b.end());
      a.insert(a.end(), c.begin(), c.end());
      return a;
    };
    EXPECT_EQ(rank.run(AllGather{.group = group}, piece, {own})[0],
              joined(rows_of(0, {0}), rows_of(1, {0}), rows_of(2, {0})));
    EXPECT_EQ(rank.run(AllToAll{.group = group}, all, {rows})[0],
              joined(rows_of(0, {me}), rows_of(1, {me}), rows_of(2, {me})));
    EXPECT_EQ(rank.run(AllReduce{.group = group, .op = ReduceOp::kMax}, piece, {own})[0],
              rows_of(2, {0}));
    testing::Numbers sum = rows_of(1, {me});
    for (double& x : sum) x *= 3;
    EXPECT_EQ(rank.run(ReduceScatter{.group = group}, all, {rows})[0], sum);
    sum = rows_of(1, {0});
    for (double& x : sum) x *= 3;
    EXPECT_EQ(rank.run(AllReduce{.group = group}, piece, {own})[0], sum);
    for (const int offset : {1, 2, -1}) {
      EXPECT_EQ(rank.run(Shift{.group = group, .offset = offset}, piece, {own})[0],
                rows_of((group.rank + 6 - offset) % 3, {0}));
    }
  });
}

// Of each member [2, 1, 3], rows 0 and 1 of it in different slices of the whole.
TEST(Collectives, gather_and_scatter_along_a_dim) {
  run_ranks(3, [](World& world) {
    const Rank rank(world);
    const CommGroup group = rank.group();
    testing::Numbers whole;
    for (const double slice : {0, 1}) {
      for (const double member : {0, 1, 2}) {
        for (const double x : rows_of(member, {slice})) whole.push_back(x);
      }
    }
    const testing::Numbers own = rows_of(group.rank, {0, 1});
    EXPECT_EQ(rank.run(AllGather{.group = group, .dim = 1}, {f32({2, 1, 3})}, {own})[0], whole);
    testing::Numbers sum = own;
    for (double& x : sum) x *= 3;
    EXPECT_EQ(rank.run(ReduceScatter{.group = group, .dim = 1}, {f32({2, 3, 3})}, {whole})[0], sum);
    EXPECT_EQ(rank.run(AllGather{.group = group, .dim = 0}, {f32({2, 3})}, {own})[0],
              rank.run(AllGather{.group = group}, {f32({2, 3})}, {own})[0]);
  });
}

TEST(Collectives, one_sends_what_the_other_receives) {
  run_ranks(2, [](World& world) {
    const Rank rank(world);
    if (world.rank() == 0) {
      rank.run(Send{.group = rank.group()}, {f32({3})}, {{7, 8, 9}});
    } else {
      const auto got = rank.run(Recv{.group = rank.group(), .type = f32({3})}, {}, {});
      EXPECT_EQ(got[0], testing::Numbers({7, 8, 9}));
    }
  });
}

}  // namespace

template <>
OpCases cases_of<AllGather>() {
  CasesOf<AllGather> c;
  good(c, "alone", {.group = kAlone}, {f32({4, 3})});
  good(c, "tokens", {.group = kAlone}, {i32({5})});
  good(c, "along a dim", {.group = kAlone, .dim = 1}, {f32({4, 3, 2})});
  c.bad("no such dim", {.group = kAlone, .dim = 2}, {f32({4, 3})});
  c.bad("no such member", {.group = {.id = 0, .size = 2, .rank = 2}}, {f32({4, 3})});
  return c.cases;
}

template <>
OpCases cases_of<ReduceScatter>() {
  CasesOf<ReduceScatter> c;
  good(c, "alone", {.group = kAlone}, {f32({1, 4, 3})});
  good(c, "along a dim", {.group = kAlone, .dim = 1}, {f32({4, 3, 2})});
  c.bad("rows for other ranks", {.group = kThree}, {f32({2, 4})});
  c.bad("an uneven dim", {.group = kThree, .dim = 1}, {f32({3, 4})});
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
