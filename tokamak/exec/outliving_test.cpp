#include "tokamak/plan/outliving.h"

#include <functional>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/exec/executor.h"
#include "tokamak/exec/test_plan.h"
#include "tokamak/plan/slots.h"
#include "tokamak/plan/streams.h"

namespace tokamak {
namespace {

using testing::first;
using testing::HandPlan;
using testing::Meeting;

// Two stages' backwards with reductions of the last microbatch, each backward followed by its send;
// the update reads what they have reduced.
struct ReducedBackward {
  static constexpr int kMicrobatches = 3;

  HandPlan p;
  int backward = p.segment("backward");
  int send = p.segment("send", true);
  int update = p.segment("update");
  std::function<void()> reduce = [] {};
  std::function<void()> sent = [] {};
  float updated = 0.0F;

  ReducedBackward() {
    p.plan.slots = {{.first_segment = backward, .last_segment = send, .bytes = 4}};
    p.add(backward, 0, {HandPlan::state(0)}, {HandPlan::state(0), HandPlan::slot(0)},
          [](const KernelArgs& a) {
            first(a.out[0]) = first(a.in[0]) + 1.0F;
            first(a.out[1]) = first(a.out[0]);
          });
    p.add(backward, 1, {HandPlan::state(0)}, {HandPlan::state(0)}, [this](const KernelArgs& a) {
       reduce();
       first(a.out[0]) = 10.0F * first(a.in[0]);
     }).when = When::kLastMicrobatch;
    p.add(send, 2, {HandPlan::slot(0)}, {}, [this](const KernelArgs&) { sent(); });
    p.add(update, 0, {HandPlan::state(0)}, {HandPlan::state(0)}, [this](const KernelArgs& a) {
      updated = first(a.in[0]);
      first(a.out[0]) = 0.0F;
    });
    p.plan.segments[update].runs = Segment::Runs::kOnceAfter;
    for (int m = 0; m < kMicrobatches; ++m) {
      p.item(backward, m);
      p.plan.items.back().is_first = m == 0;
      p.plan.items.back().is_last = m + 1 == kMicrobatches;
      p.item(send, m);
    }
    p.item(update, 0);
    set_waits(p.plan);
    let_reductions_outlive(p.plan);
    assign_slots(p.plan);
  }

  void run(Executor& executor) {
    for (const ScheduleItem& item : p.plan.items) executor.run(item);
  }
};

// The reduction ends only once the item's send has run.
TEST(Outliving, reductions_do_not_hold_up_a_send) {
  ReducedBackward t;
  check_plan(t.p.plan);
  EXPECT_EQ(t.p.plan.segments[t.backward].outliving_streams, std::vector<int>{1});
  EXPECT_EQ(t.p.plan.items.back().waits, std::vector<int>{4});
  for (const bool is_traced : {false, true}) {
    const Memory memory = t.p.memory();
    Executor executor(t.p.plan, memory);
    std::vector<TaskSpan> spans;
    if (is_traced) executor.trace(&spans);
    for (int step = 0; step < 3; ++step) {
      Meeting meeting;
      bool met[2] = {};
      int num_sent = 0;
      t.reduce = [&] { met[0] = meeting.arrive(); };
      t.sent = [&] {
        if (++num_sent == t.kMicrobatches) met[1] = meeting.arrive();
      };
      t.run(executor);
      EXPECT_TRUE(met[0] && met[1]);
      EXPECT_EQ(t.updated, 30.0F);
    }
    EXPECT_EQ(spans.size(), is_traced ? 3U * 8U : 0U);
  }
}

// Whether it fails before the item after it begins, or while that one runs or waits.
TEST(Outliving, errors_of_a_reduction_are_told) {
  for (int i = 0; i < 50; ++i) {
    ReducedBackward t;
    t.reduce = [] { throw SystemError("the wire is cut"); };
    const Memory memory = t.p.memory();
    Executor executor(t.p.plan, memory);
    EXPECT_THROW(t.run(executor), SystemError);
    EXPECT_THROW(executor.run(t.p.plan.items[0]), Bug);
  }
}

TEST(Outliving, is_only_for_state_and_the_last_microbatch) {
  for (const int broken : {0, 1, 2}) {
    ReducedBackward t;
    Segment& backward = t.p.plan.segments[t.backward];
    Task& reduction = backward.tasks[1];
    if (broken == 0) reduction.when = When::kEvery;
    if (broken == 1) reduction.workspace_bytes = 4;
    if (broken == 2) reduction.in.push_back(HandPlan::scratch(0));
    EXPECT_THROW(check_plan(t.p.plan), Bug) << broken;
    let_reductions_outlive(t.p.plan);
    EXPECT_EQ(backward.outliving_streams, std::vector<int>{}) << broken;
  }
}

TEST(CheckPlan, finds_races_with_what_outlives_an_item) {
  ReducedBackward no_wait;
  no_wait.p.plan.items.back().waits.clear();
  EXPECT_THROW(check_plan(no_wait.p.plan), Bug);

  ReducedBackward joined;
  joined.p.plan.segments[joined.backward].outliving_streams.clear();
  joined.p.plan.items.back().waits.clear();
  check_plan(joined.p.plan);
}

}  // namespace
}  // namespace tokamak
