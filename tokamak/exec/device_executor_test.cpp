// The loop over a device's streams, on a device that only keeps a log.
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tokamak/exec/executor.h"
#include "tokamak/exec/test_plan.h"
#include "tokamak/ops/attention/attention.h"
#include "tokamak/plan/outliving.h"
#include "tokamak/plan/streams.h"

namespace tokamak {
namespace {

using testing::HandPlan;

// Keeps what it is given, in order; has done it at once.
class LoggingDevice final : public DeviceStreams {
 public:
  std::vector<std::string> log;
  int captures = 0;

  void work(const std::string& name) {
    (recording_ == nullptr ? log : *recording_).push_back(name);
  }

  DeviceStream stream(size_t n) override { return &streams_.at(n); }

  DeviceEvent make_event(bool) override { return &events_.emplace_back(); }

  void record(DeviceEvent, DeviceStream) override { EXPECT_EQ(recording_, nullptr); }

  void wait(DeviceStream stream, DeviceEvent) override {
    EXPECT_EQ(recording_, nullptr);
    log.push_back(fmt::format("{} waits", static_cast<char*>(stream) - streams_.data()));
  }

  std::unique_ptr<DeviceGraph> capture(DeviceStream stream,
                                       const std::function<void()>& work) override {
    EXPECT_EQ(stream, &streams_[0]);
    EXPECT_EQ(recording_, nullptr);
    ++captures;
    auto graph = std::make_unique<Recording>(*this);
    recording_ = &graph->tasks;
    work();
    recording_ = nullptr;
    return graph;
  }

  bool has_happened(DeviceEvent) override { return true; }

  void synchronize(DeviceEvent) override {}

  void* make_pinned(size_t) override { return nullptr; }

  void copy_to_pinned(void*, const std::byte*, size_t) override {}

  double seconds_between(DeviceEvent, DeviceEvent) override { return 0.0; }

 private:
  struct Recording final : DeviceGraph {
    explicit Recording(LoggingDevice& d) : device(d) {}

    void launch(DeviceStream stream) override {
      EXPECT_EQ(stream, &device.streams_[0]);
      EXPECT_EQ(device.recording_, nullptr);
      device.log.push_back(fmt::format("[{}]", fmt::join(tasks, " ")));
    }

    LoggingDevice& device;
    std::vector<std::string> tasks;
  };

  std::array<char, 4> streams_{};
  std::deque<char> events_;
  std::vector<std::string>* recording_ = nullptr;
};

// a b c d, then x beside them, which e reads, one task of the last microbatch, two short stretches.
struct ReplayedPlan {
  HandPlan p;
  LoggingDevice device;
  std::map<std::string, int> calls;
  int segment = p.segment("s");

  ReplayedPlan() {
    p.backend.device = &device;
    p.plan.device_graphs = true;
    for (const char* name : {"a", "b", "c"}) add(name);
    add("d").out = {HandPlan::scratch(0)};
    Task& x = add("x", 1);
    x.in = {HandPlan::scratch(0)};
    x.out = {HandPlan::scratch(1)};
    add("e").in = {HandPlan::scratch(1)};
    add("f");
    add("last").when = When::kLastMicrobatch;
    for (const char* name : {"g", "h"}) add(name);
    for (const char* name : {"i", "j", "k"}) add(name).label.phase = Phase::kBackward;
    add("l").label.phase = Phase::kBackward;
    p.plan.segments[0].tasks.back().when = When::kLastMicrobatch;
    for (Task& task : p.plan.segments[0].tasks) task.accumulate.resize(task.out.size());
    set_waits(p.plan);
  }

  Task& add(const std::string& name, int stream = 0) {
    return p.add(segment, stream, {}, {}, [this, name](const KernelArgs&) {
      ++calls[name];
      device.work(name);
    });
  }

  std::string run(Executor& executor, const ScheduleItem& item) {
    device.log.clear();
    executor.run(item);
    return fmt::format("{}", fmt::join(device.log, ", "));
  }
};

TEST(DeviceGraphs, replay_stretches_between_what_the_host_must_do) {
  ReplayedPlan t;
  const Memory memory = t.p.memory();
  Executor executor(t.p.plan, memory);
  PhaseTimes phases{};
  executor.time_phases(&phases);
  const std::vector<ScheduleItem> items = t.p.plan.schedule(3);
  executor.warm_up(items);
  const int captures = t.device.captures;
  t.calls.clear();
  const std::string replayed =
      "1 waits, [a b c d], 1 waits, x, 0 waits, [e f g h], i, j, k, 0 waits";
  for (int step = 0; step < 2; ++step) {
    for (size_t m = 0; m < 2; ++m) EXPECT_EQ(t.run(executor, items[m]), replayed) << step;
    EXPECT_EQ(t.run(executor, items[2]),
              "1 waits, [a b c d], 1 waits, x, 0 waits, [e f last g h], [i j k l], 0 waits");
  }
  EXPECT_EQ(t.calls["a"], 0);
  EXPECT_EQ(t.calls["x"], 6);
  EXPECT_EQ(t.calls["last"], 0);
  EXPECT_EQ(captures, 7);  // a, e of the first, middle and last item, i of the last
  EXPECT_EQ(t.device.captures, captures);
}

// Making a graph waits for the device, which may wait for a peer.
TEST(DeviceGraphs, are_never_made_within_a_step) {
  ReplayedPlan t;
  const Memory memory = t.p.memory();
  Executor executor(t.p.plan, memory);
  const std::vector<ScheduleItem> items = t.p.plan.schedule(2);
  executor.warm_up(std::span(items).first(1));
  const int captures = t.device.captures;
  t.run(executor, items[0]);
  EXPECT_EQ(t.run(executor, items[1]),
            "1 waits, a, b, c, d, 1 waits, x, 0 waits, e, f, last, g, h, i, j, k, l, 0 waits");
  EXPECT_EQ(captures, 2);
  EXPECT_EQ(t.device.captures, captures);
}

TEST(DeviceGraphs, are_not_for_traced_items_nor_for_plans_that_do_not_say_so) {
  ReplayedPlan t;
  for (const bool device_graphs : {true, false}) {
    t.p.plan.device_graphs = device_graphs;
    const Memory memory = t.p.memory();
    Executor executor(t.p.plan, memory);
    const ScheduleItem item{.segment = t.segment};
    executor.warm_up({&item, 1});
    std::vector<TaskSpan> spans;
    executor.trace(&spans);
    const std::string eager = t.run(executor, item);
    executor.trace(nullptr);
    EXPECT_EQ(t.run(executor, item) == eager, !device_graphs);
    EXPECT_EQ(spans.size(), t.p.plan.segments[0].tasks.size());
  }
}

// Attributes choose among kernels, which a device loads when each runs first.
TEST(DeviceExecutor, warms_up_each_kernel_that_attributes_choose) {
  HandPlan p;
  LoggingDevice device;
  p.backend.device = &device;
  const int s = p.segment("s");
  std::map<int64_t, int> calls;  // by window
  for (const int64_t window : {0, 512, 0, 512}) {
    const auto op = std::make_shared<const Attention>(Attention{.window = window});
    Task& task = p.add(s, 0, {}, {}, {});
    task.rules = &kRules<Attention>;
    task.op = op;
    p.backend.kernels[op.get()] = [&calls, window](const KernelArgs&) { ++calls[window]; };
  }
  const Memory memory = p.memory();
  Executor executor(p.plan, memory);
  executor.warm_up(p.plan.schedule(1));
  // For a step's first microbatch and for later ones.
  EXPECT_EQ(calls, (std::map<int64_t, int>{{0, 2}, {512, 2}}));
}

// Each choice of slots has addresses of its own.
TEST(DeviceGraphs, record_each_choice_of_slots) {
  HandPlan p;
  LoggingDevice device;
  p.backend.device = &device;
  p.plan.device_graphs = true;
  p.plan.slots = {{.first_segment = 0, .last_segment = 0, .bytes = 4, .count = 2}};
  const int s = p.segment("s");
  const std::byte* base = nullptr;
  for (int t = 0; t < 4; ++t) {
    p.add(s, 0, {}, {HandPlan::slot(0)}, [&](const KernelArgs& a) {
      device.work(fmt::format("{}", static_cast<const std::byte*>(a.out[0].data) - base));
    });
  }
  for (int m = 0; m < 2; ++m) {
    p.item(s, m);
    p.plan.items.back().slots = {m};
  }
  const Memory memory = p.memory();
  base = memory.base(ArenaKind::kSlot);
  Executor executor(p.plan, memory);
  executor.warm_up(p.plan.items);
  device.log.clear();
  for (const ScheduleItem& item : p.plan.items) executor.run(item);
  EXPECT_EQ(device.log, (std::vector<std::string>{"[0 0 0 0]", "[4 4 4 4]"}));
}

// A backward with a reduction of the last microbatch during its end, its send, the update.
TEST(DeviceExecutor, waits_for_what_outlives_an_item_where_it_is_used) {
  for (const bool outlives : {true, false}) {
    HandPlan p;
    LoggingDevice device;
    p.backend.device = &device;
    const auto work = [&](const char* name) {
      return [&device, name](const KernelArgs&) { device.work(name); };
    };
    const int backward = p.segment("backward");
    const int send = p.segment("send", true);
    const int update = p.segment("update");
    p.add(backward, 0, {}, {HandPlan::state(0)}, work("gradient"));
    p.add(backward, 1, {HandPlan::state(0)}, {HandPlan::state(0)}, work("reduce")).when =
        When::kLastMicrobatch;
    p.add(send, 2, {}, {}, work("send"));
    p.add(update, 0, {HandPlan::state(0)}, {HandPlan::state(1)}, work("update"));
    for (int m = 0; m < 2; ++m) {
      p.item(backward, m);
      p.plan.items.back().is_last = m == 1;
      p.item(send, m);
    }
    p.item(update, 0);
    set_waits(p.plan);
    if (outlives) {
      let_reductions_outlive(p.plan);
      wait_for_outliving(p.plan);
    }
    check_plan(p.plan);
    const Memory memory = p.memory();
    Executor executor(p.plan, memory);
    for (const ScheduleItem& item : p.plan.items) executor.run(item);
    // Streams wait for the beginning of items, reduce for its gradient; the step's end for all.
    const std::string joined = outlives ? "" : "0 waits, ";
    const std::string awaited = outlives ? "0 waits, " : "";
    EXPECT_EQ(fmt::format("{}", fmt::join(device.log, ", ")),
              fmt::format("1 waits, gradient, {}2 waits, send, 1 waits, gradient, 1 waits, reduce, "
                          "{}2 waits, send, {}update, 0 waits, 0 waits",
                          joined, joined, awaited));
  }
}

}  // namespace
}  // namespace tokamak
