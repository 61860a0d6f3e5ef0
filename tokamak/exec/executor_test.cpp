#include "tokamak/exec/executor.h"

#include <chrono>
#include <thread>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tokamak/comm/test_world.h"
#include "tokamak/core/error.h"
#include "tokamak/core/random.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/exec/communicators.h"
#include "tokamak/exec/test_plan.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/elementwise/add.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/plan/compile.h"
#include "tokamak/plan/slots.h"
#include "tokamak/plan/streams.h"

#include "tests/fixtures/processes.h"

namespace tokamak {
namespace {

using namespace std::chrono_literals;
using testing::first;
using testing::HandPlan;
using testing::Meeting;

TEST(Streams, run_at_the_same_time_and_join_at_the_end_of_an_item) {
  HandPlan p;
  Meeting meeting;
  bool met[2] = {};
  const int s = p.segment("both");
  p.add(s, 1, {}, {HandPlan::scratch(0)}, [&](const KernelArgs&) { met[1] = meeting.arrive(); });
  p.add(s, 0, {}, {HandPlan::scratch(1)}, [&](const KernelArgs&) { met[0] = meeting.arrive(); });
  set_waits(p.plan);
  check_plan(p.plan);
  const Memory memory = p.memory();
  Executor executor(p.plan, memory);
  executor.run({.segment = s});
  EXPECT_TRUE(met[0] && met[1]);
}

TEST(Streams, wait_for_what_they_read_and_the_wait_is_counted) {
  HandPlan p;
  const int s = p.segment("chain");
  p.add(s, 1, {}, {HandPlan::scratch(0)}, [](const KernelArgs& a) {
    await_time(0.03, std::chrono::steady_clock::now());
    first(a.out[0]) = 3.0F;
  });
  p.add(s, 0, {HandPlan::scratch(0)}, {HandPlan::scratch(1)},
        [](const KernelArgs& a) { first(a.out[0]) = 2.0F * first(a.in[0]); });
  set_waits(p.plan);
  EXPECT_EQ(p.plan.segments[0].tasks[1].waits, std::vector<int>{0});
  const Memory memory = p.memory();
  Executor executor(p.plan, memory);
  std::vector<TaskSpan> spans;
  PhaseTimes phases{};
  executor.trace(&spans);
  executor.time_phases(&phases);
  executor.run({.segment = s});
  EXPECT_EQ(reinterpret_cast<float*>(memory.base(ArenaKind::kScratch))[1], 6.0F);
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[1].task->stream, 1);
  EXPECT_LE(spans[1].end_s, spans[0].begin_s);
  EXPECT_GT(executor.exposed_comm_s(), 0.02);
  EXPECT_LT(phases[Phase::kForward], 0.02);
}

// Random tasks on three streams give the bytes that they give on one.
TEST(Streams, derived_waits_keep_the_order_of_issue) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    std::vector<std::vector<float>> results;
    for (const int num_streams : {1, 3}) {
      uint64_t drawn = 0;
      const auto draw = [&](uint32_t n) {
        return static_cast<int>(random_u32(seed, 11, drawn++) % n);
      };
      HandPlan p;
      const int s = p.segment("random");
      for (int t = 0; t < 60; ++t) {
        const int in = draw(30);
        const int out = draw(30);
        const int length = 1 + draw(4);
        Task& task =
            p.add(s, draw(3) % num_streams, {HandPlan::scratch(in, length)},
                  {HandPlan::scratch(out, length)}, [t](const KernelArgs& a) {
                    for (int64_t k = 0; k < a.out[0].numel(); ++k) {
                      float& y = a.out[0].as<float>()[k];
                      y = 0.25F * y + 0.5F * a.in[0].as<float>()[k] + static_cast<float>(t);
                    }
                  });
        task.when = draw(8) == 0 ? When::kLastMicrobatch : When::kEvery;
      }
      set_waits(p.plan);
      check_plan(p.plan);
      const Memory memory = p.memory();
      Executor executor(p.plan, memory);
      for (const ScheduleItem& item : p.plan.schedule(5)) executor.run(item);
      const auto* data = reinterpret_cast<const float*>(memory.base(ArenaKind::kScratch));
      results.emplace_back(data, data + 40);
    }
    EXPECT_EQ(results[0], results[1]) << "seed " << seed;
  }
}

TEST(Executor, runs_tasks_of_the_last_microbatch_only_there) {
  HandPlan p;
  const int s = p.segment("s");
  int every = 0;
  int last = 0;
  p.add(s, 0, {}, {}, [&](const KernelArgs&) { ++every; });
  p.add(s, 1, {}, {}, [&](const KernelArgs&) { ++last; }).when = When::kLastMicrobatch;
  const Memory memory = p.memory();
  Executor executor(p.plan, memory);
  for (int step = 0; step < 2; ++step) {
    for (const ScheduleItem& item : p.plan.schedule(3)) executor.run(item);
  }
  EXPECT_EQ(every, 6);
  EXPECT_EQ(last, 2);
}

// The second of four pipeline ranks: receives in the background, sends in the background, 1F1B.
struct OneForwardOneBackward {
  static constexpr int kMicrobatches = 8;
  static constexpr int kInFlight = 3;

  HandPlan p;
  int recv = p.segment("recv F", true);
  int forward = p.segment("F");
  int send = p.segment("send F", true);
  int backward = p.segment("B");
  float received = 0.0F;
  std::vector<float> sent;

  OneForwardOneBackward() {
    p.plan.slots = {{.first_segment = recv, .last_segment = forward, .bytes = 4},
                    {.first_segment = forward, .last_segment = send, .bytes = 4},
                    {.first_segment = forward, .last_segment = backward, .bytes = 8}};
    p.add(recv, 1, {}, {HandPlan::slot(0)}, [this](const KernelArgs& a) {
      std::this_thread::yield();
      first(a.out[0]) = ++received;
    });
    p.add(forward, 0, {HandPlan::slot(0)}, {HandPlan::slot(1), HandPlan::slot(2, 1)},
          [](const KernelArgs& a) {
            first(a.out[0]) = 10.0F * first(a.in[0]);
            first(a.out[1]) = first(a.in[0]);
          });
    p.add(send, 2, {HandPlan::slot(1)}, {}, [this](const KernelArgs& a) {
      std::this_thread::yield();
      sent.push_back(first(a.in[0]));
    });
    p.add(backward, 0, {HandPlan::slot(2, 1), HandPlan::state(0)}, {HandPlan::state(0)},
          [](const KernelArgs& a) { first(a.out[0]) = 2.0F * first(a.in[1]) + first(a.in[0]); });
    int begun = 0;
    const auto run_forward = [&] {
      const int at = static_cast<int>(p.plan.items.size());
      p.item(recv, begun);
      p.item(forward, begun, {at});
      p.item(send, begun++);
    };
    for (int m = 0; m < kInFlight - 1; ++m) run_forward();
    for (int m = 0; m < kMicrobatches; ++m) {
      if (begun < kMicrobatches) run_forward();
      p.item(backward, m);
    }
    set_waits(p.plan);
    assign_slots(p.plan);
  }
};

TEST(Slots, are_as_many_as_microbatches_in_flight) {
  OneForwardOneBackward t;
  check_plan(t.p.plan);
  EXPECT_EQ(t.p.plan.slots[2].count, t.kInFlight);
  // A forward waits for the send before the last one; a receive is waited for at once.
  EXPECT_EQ(t.p.plan.slots[1].count, 2);
  EXPECT_EQ(t.p.plan.slots[0].count, 1);
  const Memory memory = t.p.memory();
  Executor executor(t.p.plan, memory);
  for (int step = 0; step < 2; ++step) {
    for (const ScheduleItem& item : t.p.plan.schedule(0)) executor.run(item);
  }
  ASSERT_EQ(t.sent.size(), 2U * t.kMicrobatches);
  float want = 0.0F;
  for (int m = 0; m < 2 * t.kMicrobatches; ++m) {
    EXPECT_EQ(t.sent[m], 10.0F * static_cast<float>(m + 1));
    want = 2.0F * want + static_cast<float>(m + 1);
  }
  EXPECT_EQ(*reinterpret_cast<float*>(memory.base(ArenaKind::kState)), want);
}

TEST(Slots, of_a_send_are_free_once_it_is_waited_for) {
  OneForwardOneBackward t;
  int last_send = -1;
  for (int i = 0; i < std::ssize(t.p.plan.items); ++i) {
    ScheduleItem& item = t.p.plan.items[i];
    if (item.segment == t.forward && last_send >= 0) item.waits.push_back(last_send);
    if (item.segment == t.send) last_send = i;
  }
  assign_slots(t.p.plan);
  check_plan(t.p.plan);
  EXPECT_EQ(t.p.plan.slots[1].count, 1);
  const Memory memory = t.p.memory();
  Executor executor(t.p.plan, memory);
  for (const ScheduleItem& item : t.p.plan.items) executor.run(item);
  EXPECT_EQ(t.sent.size(), static_cast<size_t>(t.kMicrobatches));
}

TEST(Slots, of_microbatches_in_flight_must_differ) {
  OneForwardOneBackward t;
  for (ScheduleItem& item : t.p.plan.items) {
    if (item.slots[2] >= 0) item.slots[2] %= 2;
  }
  EXPECT_THROW(check_plan(t.p.plan), Bug);
}

TEST(CheckPlan, finds_races_with_the_background) {
  OneForwardOneBackward no_wait;
  for (ScheduleItem& item : no_wait.p.plan.items) item.waits.clear();
  EXPECT_THROW(check_plan(no_wait.p.plan), Bug);

  OneForwardOneBackward writes_state;
  writes_state.p.add(writes_state.send, 2, {}, {HandPlan::state(0)}, [](const KernelArgs&) {});
  EXPECT_THROW(check_plan(writes_state.p.plan), Bug);

  OneForwardOneBackward later_wait;
  later_wait.p.plan.items[0].waits = {3};
  EXPECT_THROW(check_plan(later_wait.p.plan), Bug);
}

TEST(Executor, throws_what_another_stream_throws) {
  HandPlan p;
  const int s = p.segment("s");
  p.add(s, 1, {}, {HandPlan::scratch(0)},
        [](const KernelArgs&) { throw SystemError("the wire is cut"); });
  p.add(s, 2, {HandPlan::scratch(0)}, {HandPlan::scratch(1)},
        [](const KernelArgs&) { ADD_FAILURE() << "runs after an error"; });
  p.add(s, 0, {HandPlan::scratch(1)}, {},
        [](const KernelArgs&) { ADD_FAILURE() << "runs after an error"; });
  set_waits(p.plan);
  const Memory memory = p.memory();
  Executor executor(p.plan, memory);
  try {
    executor.run({.segment = s});
    ADD_FAILURE() << "no error";
  } catch (const SystemError& e) {
    EXPECT_STREQ(e.what(), "the wire is cut");
  }
  EXPECT_THROW(executor.run({.segment = s}), Bug);
}

// Rank 1 fails while its other stream is in a collective that rank 0 never enters.
TEST(Executor, does_not_hang_where_compute_fails_beside_a_collective) {
  const auto start = std::chrono::steady_clock::now();
  try {
    run_ranks(2, [](World& world) {
      HandPlan p;
      const CommGroup group = p.plan.groups.add({.name = "pair", .ranks = {0, 1}}, world.rank());
      const Communicators communicators(world, p.plan.groups);
      if (world.rank() == 0) {
        world.barrier();
        return;
      }
      const int s = p.segment("s");
      p.add(s, 1, {HandPlan::scratch(0)}, {HandPlan::scratch(0)}, nullptr);
      Task& task = p.plan.segments[0].tasks[0];
      task.rules = &kRules<AllReduce>;
      task.op = std::make_shared<const AllReduce>(AllReduce{.group = group});
      p.add(s, 0, {}, {}, [](const KernelArgs&) { throw Error("a compute error"); });
      const Memory memory = p.memory();
      Executor executor(p.plan, memory, communicators.groups(), &world);
      executor.run({.segment = s});
    });
    ADD_FAILURE() << "no error";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("a compute error"), std::string::npos) << e.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
}

TEST(Communicators, are_made_in_one_order_whatever_the_tables) {
  run_ranks(6, [](World& world) {
    // Groups of a 2 x 3 mesh and pairs, each rank's table in an order of its own.
    std::vector<GroupTable::Entry> all{
        {"row", {0, 1, 2}}, {"row", {3, 4, 5}}, {"column", {0, 3}},
        {"column", {1, 4}}, {"column", {2, 5}}, {"p2p", {0, 3}},
        {"ring", {2, 3}},   {"ring", {5, 0}},   {"all", {0, 1, 2, 3, 4, 5}}};
    GroupTable table;
    for (size_t i = 0; i < all.size(); ++i) {
      const auto& entry = all[(i * 5 + static_cast<size_t>(world.rank()) * 2) % all.size()];
      if (std::find(entry.ranks.begin(), entry.ranks.end(), world.rank()) != entry.ranks.end())
        table.add(entry, world.rank());
    }
    const Communicators made(world, table);
    ASSERT_EQ(made.groups().size(), table.entries.size());
    for (size_t g = 0; g < table.entries.size(); ++g)
      EXPECT_EQ(made.groups()[g]->size(), std::ssize(table.entries[g].ranks));
  });
}

TensorType f32(Dims dims) {
  return {.dtype = DType::kF32, .dims = std::move(dims)};
}

// Compiled: sum over ranks on stream 1, compute concurrently, both added.

TEST(Executor, runs_collectives_of_a_compiled_graph_on_their_stream) {
  run_ranks(3, [](World& world) {
    StateTable states;
    Graph g(states);
    const StateId x_id = states.declare({.name = "x", .type = f32({4})});
    const StateId y_id =
        states.declare({.name = "y", .type = f32({4}), .kind = StateKind::kResult});
    GroupTable groups;
    const CommGroup group = groups.add({.name = "all", .ranks = {0, 1, 2}}, world.rank());
    const Value x = g.read(x_id);
    const Value twice = g.apply(Add{}, {x, x});
    const Value sum = g.apply(AllReduce{.group = group}, {twice});
    g.mutable_node(sum.node).stream = 1;
    const Value beside = g.apply(Add{}, {twice, x});
    accumulate_into(g, g.apply(Add{}, {sum, beside}), g.read(y_id),
                    AccumulateMode::kFirstMicrobatch);
    const StateLayout layout = lay_out(states);
    const auto backend = cpu::make_backend();
    Plan plan = compile(g, layout, {.target = backend->target()});
    plan.groups = groups;
    check_plan(plan);
    const Plan* plans[] = {&plan};
    const Memory memory(*backend, plans);
    const StateAccess access(memory, states, layout);
    const Communicators communicators(world, groups);
    Executor executor(plan, memory, communicators.groups(), &world);
    const auto rank = static_cast<float>(world.rank());
    const float values[] = {rank, 1.0F, 2.0F * rank, -rank};
    access.write(x_id, std::span<const float>(values));
    for (const ScheduleItem& item : plan.schedule(2)) executor.run(item);
    const float sums[] = {3.0F, 3.0F, 6.0F, -3.0F};
    const auto y = access.read<float>(y_id);
    for (size_t k = 0; k < 4; ++k) EXPECT_EQ(y[k], 2.0F * (2.0F * sums[k] + 3.0F * values[k]));
  });
}

}  // namespace
}  // namespace tokamak
