#include "tokamak/plan/streams.h"

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/core/random.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/plan/slots.h"

namespace tokamak {
namespace {

using Waits = std::vector<std::vector<int>>;

ByteUse reads(int task, int64_t begin, int64_t end) {
  return {.task = task, .begin = begin, .end = end};
}

ByteUse writes(int task, int64_t begin, int64_t end) {
  return {.task = task, .writes = true, .begin = begin, .end = end};
}

TEST(Waits, follow_bytes_read_and_written) {
  const std::vector<StreamTask> tasks{{0}, {1}, {0}, {1}, {0}};
  // 0 writes x; 1 reads x, writes y; 2 reads y; 3 overwrites x, which 2 left alone; 4 reads
  // neither.
  const std::vector<ByteUse> uses{writes(0, 0, 8),  reads(1, 0, 8),  writes(1, 8, 16),
                                  reads(2, 12, 16), writes(3, 0, 8), reads(4, 16, 20)};
  EXPECT_EQ(derive_waits(tasks, uses), (Waits{{}, {0}, {1}, {}, {}}));
  EXPECT_EQ(first_known(tasks, derive_waits(tasks, uses)), (std::vector<int>{5, 2, 5, 5, 5}));
}

TEST(Waits, leave_out_what_others_imply) {
  const std::vector<StreamTask> tasks{{1}, {2}, {0}};
  // 2 reads what 0 and 1 wrote, but 1 has waited for 0.
  EXPECT_EQ(derive_waits(tasks, std::vector<ByteUse>{writes(0, 0, 8), reads(1, 0, 8),
                                                     writes(1, 8, 16), reads(2, 0, 16)}),
            (Waits{{}, {0}, {1}}));
  // Two tasks of a stream: the later one is enough.
  EXPECT_EQ(derive_waits(std::vector<StreamTask>{{1}, {1}, {0}},
                         std::vector<ByteUse>{writes(0, 0, 8), writes(1, 8, 16), reads(2, 0, 16)}),
            (Waits{{}, {}, {1}}));
  // A write follows every reader, of each stream.
  EXPECT_EQ(derive_waits(std::vector<StreamTask>{{1}, {2}, {0}},
                         std::vector<ByteUse>{reads(0, 0, 8), reads(1, 0, 8), writes(2, 4, 6)}),
            (Waits{{}, {}, {0, 1}}));
}

TEST(Waits, of_tasks_that_run_in_the_last_microbatch_only_help_no_other) {
  const std::vector<StreamTask> tasks{{1}, {2, When::kLastMicrobatch}, {0}};
  const std::vector<ByteUse> uses{writes(0, 0, 8), writes(1, 0, 8), reads(2, 0, 8)};
  EXPECT_EQ(derive_waits(tasks, uses), (Waits{{}, {0}, {0, 1}}));
  const std::vector<StreamTask> all_last{
      {1}, {2, When::kLastMicrobatch}, {0, When::kLastMicrobatch}};
  EXPECT_EQ(derive_waits(all_last, uses), (Waits{{}, {0}, {1}}));
}

// Tasks of one segment that read and write ranges of the scratch arena.
struct Segments {
  Plan plan;

  explicit Segments(std::vector<Segment> segments = {Segment{}}) {
    plan.segments = std::move(segments);
    plan.arena_bytes[ArenaKind::kScratch] = 4096;
  }

  static Operand operand(int64_t begin, int64_t end) {
    return {
        .offset = begin * 4, .type = {.dtype = DType::kF32, .dims = {end - begin}}, .strides = {1}};
  }

  static Task task(const StreamTask& at) {
    static const auto kOp = std::make_shared<const Accumulate>();
    return {.rules = &kRules<Accumulate>,
            .op = kOp,
            .variant = &kCpuReference,
            .stream = at.stream,
            .when = at.when};
  }
};

TEST(Waits, derived_for_random_segments_pass_the_check_and_none_is_too_many) {
  int lost = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    uint64_t drawn = 0;
    const auto draw = [&](uint32_t n) {
      return static_cast<int>(random_u32(seed, 7, drawn++) % n);
    };
    Segments s;
    auto& tasks = s.plan.segments[0].tasks;
    for (int t = 0; t < 40; ++t) {
      tasks.push_back(Segments::task(
          {.stream = draw(3), .when = draw(6) == 0 ? When::kLastMicrobatch : When::kEvery}));
      for (auto* list : {&tasks.back().in, &tasks.back().out}) {
        const int begin = draw(60);
        list->push_back(Segments::operand(begin, begin + 1 + draw(6)));
      }
      tasks.back().accumulate.resize(1);
    }
    EXPECT_THROW(check_plan(s.plan), Bug);
    set_waits(s.plan);
    check_plan(s.plan);
    for (Task& task : tasks) {
      if (task.waits.empty()) continue;
      const int wait = task.waits.back();
      task.waits.pop_back();
      EXPECT_THROW(check_plan(s.plan), Bug) << "seed " << seed;
      task.waits.push_back(wait);
      ++lost;
    }
  }
  EXPECT_GT(lost, 3000);
}

// Plans of two ranks with two groups of both; each runs `order` (group, stream).
struct Pair {
  std::vector<Plan> plans{2};

  explicit Pair(const std::vector<std::vector<std::pair<int, int>>>& orders) {
    for (int rank = 0; rank < 2; ++rank) {
      Plan& plan = plans[rank];
      plan.segments.resize(1);
      const CommGroup groups[] = {plan.groups.add({.name = "a", .ranks = {0, 1}}, rank),
                                  plan.groups.add({.name = "b", .ranks = {0, 1}}, rank)};
      for (const auto& [group, stream] : orders[rank])
        add(rank, AllReduce{.group = groups[group]}, stream, 8);
    }
  }

  template <class T>
  void add(int rank, const T& op, int stream, int64_t elements) {
    Task task = Segments::task({.stream = stream});
    task.rules = &kRules<T>;
    task.op = std::make_shared<const T>(op);
    task.in = {Segments::operand(0, elements)};
    plans[rank].segments[0].tasks.push_back(std::move(task));
  }

  void check() const {
    const Plan* both[] = {&plans[0], &plans[1]};
    check_ranks({.degrees = {1, 2, 1, 1, 1}}, both, 2);
  }
};

TEST(CheckRanks, finds_collectives_in_different_orders) {
  Pair({{{0, 1}, {1, 1}}, {{0, 1}, {1, 1}}}).check();
  EXPECT_THROW(Pair({{{0, 1}, {1, 1}}, {{1, 1}, {0, 1}}}).check(), Bug);
  // Each on its own stream: the order of issue does not matter, unless one waits for the other.
  Pair apart({{{0, 1}, {1, 2}}, {{1, 2}, {0, 1}}});
  apart.check();
  apart.plans[0].segments[0].tasks[1].waits = {0};
  apart.check();
  apart.plans[1].segments[0].tasks[1].waits = {0};
  EXPECT_THROW(apart.check(), Bug);
}

TEST(CheckRanks, finds_collectives_that_differ) {
  EXPECT_THROW(Pair({{{0, 1}}, {}}).check(), Bug);
  Pair lengths({{}, {}});
  const CommGroup first{.id = 0, .size = 2, .rank = 0};
  const CommGroup second{.id = 0, .size = 2, .rank = 1};
  lengths.add(0, AllReduce{.group = first}, 0, 8);
  lengths.add(1, AllReduce{.group = second}, 0, 6);
  EXPECT_THROW(lengths.check(), Bug);
  Pair transfer({{}, {}});
  transfer.add(0, Send{.group = first}, 1, 8);
  transfer.add(1, Recv{.group = second}, 1, 8);
  transfer.check();
  transfer.add(0, Send{.group = first}, 1, 8);
  transfer.add(1, Send{.group = second}, 1, 8);
  EXPECT_THROW(transfer.check(), Bug);
}

// Rank 1 takes part in the same order with operands of the same type, but does something else.
TEST(CheckRanks, finds_collectives_that_do_something_else) {
  const CommGroup groups[] = {{.id = 0, .size = 2, .rank = 0}, {.id = 0, .size = 2, .rank = 1}};
  const auto check_pair = [&](auto first, auto second, DType second_out = DType::kF32) {
    Pair p({{}, {}});
    first.group = groups[0];
    second.group = groups[1];
    p.add(0, first, 1, 8);
    p.add(1, second, 1, 8);
    for (Plan& plan : p.plans) {
      Task& task = plan.segments[0].tasks[0];
      task.out = task.in;
    }
    p.plans[1].segments[0].tasks[0].out[0].type.dtype = second_out;
    p.check();
  };
  check_pair(AllReduce{}, AllReduce{});
  EXPECT_THROW(check_pair(AllReduce{}, AllReduce{.op = ReduceOp::kMax}), Bug);
  EXPECT_THROW(check_pair(AllReduce{}, AllReduce{}, DType::kBF16), Bug);
  check_pair(AllGather{.dim = 1}, AllGather{.dim = 1});
  EXPECT_THROW(check_pair(AllGather{.dim = 1}, AllGather{.dim = 0}), Bug);
  EXPECT_THROW(check_pair(AllGather{.dim = 0}, AllGather{}), Bug);
  check_pair(ReduceScatter{.dim = 1}, ReduceScatter{.dim = 1});
  EXPECT_THROW(check_pair(ReduceScatter{.dim = 1}, ReduceScatter{}), Bug);
  check_pair(Shift{.offset = -1}, Shift{.offset = -1});
  EXPECT_THROW(check_pair(Shift{.offset = -1}, Shift{.offset = 1}), Bug);
}

TEST(CheckRanks, finds_ops_that_know_another_place_in_their_group) {
  Pair p({{{0, 1}}, {{0, 1}}});
  p.plans[1].segments[0].tasks[0].op =
      std::make_shared<const AllReduce>(AllReduce{.group = {.id = 0, .size = 2, .rank = 0}});
  EXPECT_THROW(p.check(), Bug);
}

// Equal types do not make two collectives one.
TEST(CheckRanks, finds_collectives_that_serve_other_values) {
  const auto pair_of = [](const Label& other) {
    Pair p({{{0, 1}, {0, 1}}, {{0, 1}, {0, 1}}});
    for (Plan& plan : p.plans) plan.segments[0].tasks[1].label = other;
    return p;
  };
  for (const Label& other :
       {Label{.origin = {.value = 3}}, Label{.origin = {.state = 3}}, Label{.origin = {.part = 1}},
        Label{.block = 1}, Label{.phase = Phase::kBackward}}) {
    Pair p = pair_of(other);
    p.check();
    std::swap(p.plans[1].segments[0].tasks[0], p.plans[1].segments[0].tasks[1]);
    EXPECT_THROW(p.check(), Bug);
  }
}

// Both ranks send as often, but rank 1 takes the second microbatch first.
TEST(CheckRanks, finds_collectives_of_other_microbatches) {
  Pair p({{{0, 1}}, {{0, 1}}});
  for (Plan& plan : p.plans) {
    plan.segments[0].runs = Segment::Runs::kPerMicrobatch;
    plan.items = {{.segment = 0, .microbatch = 0}, {.segment = 0, .microbatch = 1}};
  }
  p.check();
  std::swap(p.plans[1].items[0], p.plans[1].items[1]);
  EXPECT_THROW(p.check(), Bug);
}

// The last pair of a step counts too: rank 1 reduces once a step, rank 0 in every microbatch.
TEST(CheckRanks, counts_the_microbatches_in_which_a_task_runs) {
  Pair p({{{0, 1}}, {{0, 1}}});
  p.check();
  for (Plan& plan : p.plans) {
    plan.segments[0].runs = Segment::Runs::kPerMicrobatch;
    plan.segments[0].tasks[0].when = When::kLastMicrobatch;
  }
  p.check();
  p.plans[0].segments[0].tasks[0].when = When::kEvery;
  EXPECT_THROW(p.check(), Bug);
}

}  // namespace
}  // namespace tokamak
