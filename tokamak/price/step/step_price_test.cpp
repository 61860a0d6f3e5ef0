#include "tokamak/price/step/step_price.h"

#include <map>
#include <numeric>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/pipeline/schedules.h"
#include "tokamak/pipeline/timeline.h"
#include "tokamak/price/machine/test_machine.h"
#include "tokamak/price/step/segment_price.h"

namespace tokamak::price {
namespace {

using Kind = PipelineItemKind;

// Whole seconds of a chunk.
struct Durations {
  int64_t forward = 1;
  int64_t input = 1;
  int64_t weight = 1;

  int64_t of(Kind kind) const {
    switch (kind) {
      case Kind::kForward:
        return forward;
      case Kind::kBackward:
        return input + weight;
      case Kind::kBackwardInput:
        return input;
      default:
        return weight;
    }
  }
};

// One rank's plan for a schedule: a copy for each computation, a message for each transfer.
class PlanMaker {
 public:
  PlanMaker(const PipelineSchedule& schedule, int rank, const Durations& durations)
      : rank_(rank), durations_(durations) {
    for (const PipelineItem& item : lower_schedule(schedule, rank, 1)) add(item);
  }

  Plan plan;

 private:
  void add(const PipelineItem& item) {
    ScheduleItem next{.segment = segment_of(item), .microbatch = item.microbatch};
    const bool is_forward = item.kind == Kind::kForward || item.kind == Kind::kRecvForward;
    const std::tuple key(is_forward, item.stage, item.microbatch);
    if (item.kind == Kind::kRecvForward || item.kind == Kind::kRecvBackward) {
      received_[key] = static_cast<int>(plan.items.size());
    } else if (!is_send(item.kind) && item.kind != Kind::kBackwardWeight) {
      const auto it = received_.find(key);
      if (it != received_.end()) next.waits = {it->second};
    }
    plan.items.push_back(next);
  }

  int segment_of(const PipelineItem& item) {
    const auto [it, is_new] =
        segments_.try_emplace({item.kind, item.stage}, static_cast<int>(plan.segments.size()));
    if (!is_new) return it->second;
    Segment segment{.runs = Segment::Runs::kPerMicrobatch, .is_background = is_message(item.kind)};
    if (!segment.is_background) {
      const bool makes_gradients =
          item.kind == Kind::kBackward || item.kind == Kind::kBackwardWeight;
      segment.name = makes_gradients ? "gradients" : "work";
      segment.tasks = {copy_of(durations_.of(item.kind))};
    } else {
      const int from = is_send(item.kind) ? rank_ : item.peer_rank;
      const int to = is_send(item.kind) ? item.peer_rank : rank_;
      const CommGroup group =
          plan.groups.add({.name = fmt::format("{} to {}", from, to), .ranks = {from, to}}, rank_);
      const int stream = 1 + group.id;
      if (is_send(item.kind)) {
        segment.tasks = {communication(Send{.group = group}, 1, 0, stream)};
      } else {
        segment.tasks = {communication(Recv{.group = group, .type = floats(1).type}, 0, 1, stream)};
      }
    }
    plan.segments.push_back(std::move(segment));
    return it->second;
  }

  int rank_;
  Durations durations_;
  std::map<std::pair<Kind, int>, int> segments_;
  std::map<std::tuple<bool, int, int>, int> received_;
};

StepPrice price_schedule(const PipelineSchedule& schedule, const Durations& durations,
                         const Machine& machine = clockwork(),
                         std::vector<PricedSpan>* spans = nullptr) {
  std::vector<PlanMaker> makers;
  makers.reserve(schedule.num_ranks);
  for (int r = 0; r < schedule.num_ranks; ++r) makers.emplace_back(schedule, r, durations);
  std::vector<PricedRank> ranks(makers.size());
  for (size_t r = 0; r < makers.size(); ++r)
    ranks[r] = {.plan = &makers[r].plan, .rank = static_cast<int>(r)};
  return price_step(ranks, schedule.num_microbatches, machine, {}, spans);
}

double sum(const StepPrice& price) {
  return std::accumulate(price.by_category.begin(), price.by_category.end(), 0.0);
}

TEST(StepPrice, MeetsTheBubblesOfClosedForms) {
  for (const auto& [p, m] : {std::pair(4, 8), {8, 16}, {2, 5}, {1, 3}}) {
    // (m + p - 1)(F + B).
    EXPECT_NEAR(price_schedule(make_schedule("1F1B", p, 1, m), {1, 1, 1}).seconds,
                3.0 * (m + p - 1), 1e-9);
    // (p - 1)(F + I - W) on top of the work.
    EXPECT_NEAR(price_schedule(make_schedule("InterleavedZeroBubble", p, 1, m), {4, 4, 3}).seconds,
                11.0 * m + 5.0 * (p - 1), 1e-9)
        << p;
    EXPECT_NEAR(price_schedule(make_schedule("ZBVZeroBubble", p, 2, m), {1, 1, 1}).seconds,
                6.0 * m + p - 1, 1e-9);
  }
  // (p - 1)(F + B) of one chunk.
  for (const auto& [p, v, m] : {std::tuple(4, 2, 8), {8, 4, 16}, {9, 7, 63}, {8, 8, 24}}) {
    EXPECT_NEAR(price_schedule(make_schedule("Interleaved1F1B", p, v, m), {1, 1, 1}).seconds,
                3.0 * (m * v + p - 1), 1e-9);
  }
}

TEST(StepPrice, AgreesWithSimulatedSchedules) {
  for (const char* name : {"GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble",
                           "ZBVZeroBubble"}) {
    const int chunks = schedule_kind(name).default_stages_per_rank;
    for (const auto& [p, m] : {std::pair(4, 12), {3, 7}}) {
      const PipelineSchedule s = make_schedule(name, p, chunks, m);
      const PipelineDurations given{.stages =
                                        std::vector<StageDurations>(s.num_stages(), {10, 12, 8})};
      const double simulated = simulate_schedule(s, given).makespan;
      EXPECT_NEAR(price_schedule(s, {10, 12, 8}).seconds, simulated, 1e-9) << name << " of " << p;
    }
  }
}

TEST(StepPrice, CategoriesSumToTheStep) {
  const StepPrice price = price_schedule(make_schedule("1F1B", 4, 1, 8), {1, 1, 1});
  EXPECT_DOUBLE_EQ(sum(price), price.seconds);
  EXPECT_NEAR(price.by_category[Category::kMemoryBound], 24.0, 1e-9);
  EXPECT_NEAR(price.by_category[Category::kBubble], 9.0, 1e-9);
  EXPECT_NEAR(price.bubble_fraction, 9.0 / 33.0, 1e-9);
}

TEST(StepPrice, MessagesTakeTheirTime) {
  Machine machine = clockwork();
  const PipelineSchedule schedule = make_schedule("1F1B", 4, 1, 8);
  const double before = price_schedule(schedule, {10, 10, 10}, machine).seconds;
  machine.levels[0].bytes_per_s = 4.0;  // a message takes a second
  const StepPrice after = price_schedule(schedule, {10, 10, 10}, machine);
  // At least three hops in and three out.
  EXPECT_GE(after.seconds, before + 6.0);
  EXPECT_DOUBLE_EQ(sum(after), after.seconds);
}

// A kernel of three seconds and a collective; a product whose 100 tiles are one wave on all
// multiprocessors and more on those that a message leaves, if that is worse.
TEST(SegmentPrices, MessagesSlowKernelsAndNotCollectives) {
  Machine machine = clockwork();
  machine.levels[0].bytes_per_s = 4.0;
  machine.software.message_slowdown = 1.4;
  Plan plan;
  const CommGroup pair = plan.groups.add({.name = "pair", .ranks = {0, 1}}, 0);
  const Task collective = communication(AllReduce{.group = pair}, 1, 1, 0);
  plan.segments = {{.name = "work", .tasks = {copy_of(3), collective}}};
  const auto price = [&] {
    const PriceOptions options;
    SegmentPrices prices(plan, machine, options);
    return prices.price({});
  };
  const SegmentPrice copied = price();
  EXPECT_GT(copied.seconds, 3.5);
  EXPECT_NEAR(copied.held_factor, 1.0 + 3.0 * 0.4 / copied.seconds, 1e-12);

  machine.device.memory.bytes_per_s = 1e300;
  const auto matrix = [](int64_t rows, int64_t columns) {
    return Operand{.type = {.dtype = DType::kBF16, .dims = {rows, columns}},
                   .strides = {columns, 1}};
  };
  const Task product{.rules = &kRules<Linear>,
                     .op = std::make_shared<const Linear>(),
                     .variant = &kGpuKernel,
                     .in = {matrix(1280, 4096), matrix(1280, 4096)},
                     .out = {matrix(1280, 1280)},
                     .accumulate = {std::nullopt}};
  plan.segments[0].tasks = {product};
  machine.software.message_sms = 8;
  machine.software.message_slowdown = 2.4;
  EXPECT_NEAR(price().held_factor, 2.4, 1e-12);
  machine.software.message_slowdown = 1.05;
  const SegmentPrice alone = price();
  EXPECT_NEAR(alone.held_factor, 2.0, 1e-12);
  plan.segments[0].tasks.push_back(collective);
  const SegmentPrice both = price();
  EXPECT_GT(both.seconds, alone.seconds);
  EXPECT_NEAR((both.held_factor - 1.0) * both.seconds, (alone.held_factor - 1.0) * alone.seconds,
              1e-12);
}

TEST(SegmentPrices, ReadByWhatThePlanGathers) {
  Machine machine = clockwork();
  machine.levels[0].bytes_per_s = 1.0;
  machine.software.compute_slowdown = 1.5;
  machine.software.copy_engine_slowdown = 1.25;
  Plan plan;
  const CommGroup pair = plan.groups.add({.name = "pair", .ranks = {0, 1}}, 0);
  plan.segments = {
      {.name = "work", .tasks = {copy_of(3), communication(AllGather{.group = pair}, 64, 128, 1)}}};
  const auto copy_s = [&](const std::vector<Transport>& transports) {
    plan.transports = transports;
    const PriceOptions options;
    SegmentPrices prices(plan, machine, options);
    return prices.price({}).end_s[0];
  };
  EXPECT_NEAR(copy_s({}), 3.0 * 1.5, 1e-12);
  EXPECT_NEAR(copy_s({Transport::kKernels}), 3.0 * 1.5, 1e-12);
  EXPECT_NEAR(copy_s({Transport::kCopyEngines}), 3.0 * 1.25, 1e-12);
  EXPECT_NEAR(copy_s({Transport::kCopyEnginesIfAlike}), 3.0 * 1.5, 1e-12);
}

TEST(StepPrice, SpansFillTheStepInOrder) {
  std::vector<PricedSpan> spans;
  const StepPrice price =
      price_schedule(make_schedule("Interleaved1F1B", 3, 2, 6), {1, 2, 3}, clockwork(), &spans);
  double busy = 0.0;
  for (size_t i = 0; i < spans.size(); ++i) {
    EXPECT_LE(spans[i].begin_s, spans[i].end_s);
    EXPECT_LE(spans[i].end_s, price.seconds + 1e-9);
    if (i > 0 && spans[i].rank == spans[i - 1].rank) {
      EXPECT_LE(spans[i - 1].begin_s, spans[i].begin_s);
    }
    if (spans[i].stream == 0) busy += spans[i].end_s - spans[i].begin_s;
  }
  EXPECT_NEAR(busy, 3 * 2 * 6 * 6.0, 1e-6) << "ranks x chunks x microbatches x (F + B)";
}

TEST(StepPrice, SpansAreAsLongAsMessagesMakeThem) {
  Machine machine = clockwork();
  machine.levels[0].bytes_per_s = 1.0;  // a message takes four seconds
  machine.software.message_slowdown = 1.5;
  std::vector<PricedSpan> spans;
  const StepPrice price =
      price_schedule(make_schedule("1F1B", 4, 1, 8), {10, 10, 10}, machine, &spans);
  double computed_s = 0.0;
  for (const PricedSpan& span : spans) {
    if (span.rank == price.slowest && span.stream == 0) computed_s += span.end_s - span.begin_s;
  }
  EXPECT_GT(computed_s, 8 * 30.0 + 10.0);
  EXPECT_NEAR(computed_s, price.by_category[Category::kMemoryBound], 1e-6);
}

// Each stage's last backward makes gradients that take `reduce` seconds to reduce.
StepPrice price_reduced(const PipelineSchedule& schedule, int64_t reduce, int overlap,
                        std::vector<PricedSpan>* spans = nullptr) {
  std::vector<Plan> plans;
  for (int r = 0; r < schedule.num_ranks; ++r) {
    Plan plan = PlanMaker(schedule, r, {1, 1, 1}).plan;
    std::map<int, size_t> last;
    for (size_t i = 0; i < plan.items.size(); ++i) {
      const Segment& segment = plan.segments[plan.items[i].segment];
      if (segment.name == "gradients") last[plan.items[i].segment] = i;
      plan.items[i].is_last = false;
    }
    ScheduleItem update{.segment = static_cast<int>(plan.segments.size())};
    for (const auto& [s, item] : last) {
      Segment& segment = plan.segments[s];
      segment.tasks.push_back(copy_of(reduce, 99, {0}));
      segment.tasks.back().when = When::kLastMicrobatch;
      segment.outliving_streams = {99};
      plan.items[item].is_last = true;
      update.waits.push_back(static_cast<int>(item));
    }
    plan.segments.push_back({.name = "update", .tasks = {copy_of(1)}});
    plan.items.push_back(update);
    plans.push_back(std::move(plan));
  }
  std::vector<PricedRank> ranks(plans.size());
  for (size_t r = 0; r < plans.size(); ++r)
    ranks[r] = {.plan = &plans[r], .rank = static_cast<int>(r)};
  Machine machine = clockwork();
  machine.software.reduction_overlap = overlap;
  return price_step(ranks, schedule.num_microbatches, machine, {}, spans);
}

// At the drain a stage does not wait for the reductions of the one after it, only the update does.
TEST(StepPrice, ReductionsRunBesideTheDrain) {
  constexpr int kRanks = 4, kMicrobatches = 8;
  const PipelineSchedule schedule = make_schedule("1F1B", kRanks, 1, kMicrobatches);
  const double work = 3.0 * (kMicrobatches + kRanks - 1) + 1.0;
  for (const int64_t reduce : {1, 5, 20}) {
    const auto seconds = static_cast<double>(reduce);
    std::vector<PricedSpan> spans;
    const StepPrice price = price_reduced(schedule, reduce, 1, &spans);
    EXPECT_NEAR(price.seconds, work + seconds, 1e-9);
    EXPECT_DOUBLE_EQ(sum(price), price.seconds);
    EXPECT_NEAR(price_reduced(schedule, reduce, 0).seconds, work + kRanks * seconds, 1e-9);
    for (const PricedSpan& span : spans) {
      if (span.stream != 99) continue;
      // The last backward of rank r ends 2 (kRanks - 1 - r) before the step's.
      EXPECT_NEAR(span.begin_s, work - 1.0 - 2.0 * span.rank, 1e-9) << span.rank;
    }
  }
  // Of chunks too, and where weight gradients run apart.
  for (const char* name : {"Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"}) {
    const PipelineSchedule other =
        make_schedule(name, kRanks, schedule_kind(name).default_stages_per_rank, kMicrobatches);
    EXPECT_LT(price_reduced(other, 5, 1).seconds, price_reduced(other, 5, 0).seconds) << name;
  }
}

// Communication of all ranks in what they do once a step, after microbatches of unequal length.
TEST(StepPrice, RanksMeetAtTheEnd) {
  std::vector<Plan> plans(2);
  for (int r = 0; r < 2; ++r) {
    Plan& plan = plans[r];
    const CommGroup all = plan.groups.add({.name = "all", .ranks = {0, 1}}, r);
    plan.segments = {
        {.name = "work", .runs = Segment::Runs::kPerMicrobatch, .tasks = {copy_of(10 + 5 * r)}},
        {.name = "update",
         .tasks = {copy_of(1), communication(AllReduce{.group = all}, 1, 1, 0), copy_of(2)}}};
  }
  const std::vector<PricedRank> ranks{{.plan = plans.data(), .rank = 0},
                                      {.plan = &plans[1], .rank = 1}};
  const StepPrice price = price_step(ranks, 3, clockwork(), {});
  EXPECT_NEAR(price.seconds, 45.0 + 3.0, 1e-9);
  EXPECT_EQ(price.slowest, 1);
  EXPECT_NEAR(price.bubble_s[0], 15.0, 1e-9);
}

TEST(StepPrice, TheHostMayBeTheSlower) {
  Plan plan;
  plan.segments = {{.name = "work",
                    .runs = Segment::Runs::kPerMicrobatch,
                    .tasks = {copy_of(1), copy_of(1), copy_of(1)}}};
  const std::vector<PricedRank> ranks{{.plan = &plan}};
  Machine machine = clockwork();
  machine.software.host_launch_s = 2.0;
  EXPECT_NEAR(price_step(ranks, 4, machine, {}).seconds, 12.0, 1e-9);
  const StepPrice launched = price_step(ranks, 4, machine, {.device_graphs = false});
  EXPECT_NEAR(launched.seconds, 24.0, 1e-9);
  EXPECT_NEAR(launched.by_category[Category::kHost], 12.0, 1e-9);
}

// Blocks of 1 + 1 s and of 10 s, launched in 2 s a kernel: 4 + 10 where none is launched ahead.
TEST(StepPrice, AHostMayLaunchOneBlockAtATime) {
  Plan plan;
  plan.segments = {{.name = "work",
                    .runs = Segment::Runs::kPerMicrobatch,
                    .tasks = {copy_of(1), copy_of(1), copy_of(10)}}};
  plan.segments[0].tasks[2].label.block = 1;
  const std::vector<PricedRank> ranks{{.plan = &plan}};
  Machine machine = clockwork();
  machine.software.host_launch_s = 2.0;
  EXPECT_NEAR(price_step(ranks, 1, machine, {.device_graphs = false}).seconds, 12.0, 1e-9);
  machine.software.host_ahead = 0;
  EXPECT_NEAR(price_step(ranks, 1, machine, {.device_graphs = false}).seconds, 14.0, 1e-9);
  machine.software.host_block_s = 20.0;
  for (Task& task : plan.segments[0].tasks) task.label.block = task.label.block == 1 ? 1 : 0;
  plan.segments[0].tasks[2].label.phase = Phase::kBackward;
  EXPECT_NEAR(price_step(ranks, 1, machine, {.device_graphs = false}).seconds, 20.0 + 40.0, 1e-9);
}

TEST(StepPrice, AccumulatingReadsWhatIsThere) {
  Plan plan;
  Task task = copy_of(4);
  task.accumulate = {AccumulateMode::kFirstMicrobatch};
  Task last = copy_of(100);
  last.when = When::kLastMicrobatch;
  plan.segments = {{.name = "work", .runs = Segment::Runs::kPerMicrobatch, .tasks = {task, last}}};
  const std::vector<PricedRank> ranks{{.plan = &plan}};
  // 4 s overwrite; 6 s read, add and write.
  EXPECT_NEAR(price_step(ranks, 3, clockwork(), {}).seconds, 4.0 + 6.0 + 6.0 + 100.0, 1e-9);
}

TEST(StepPrice, TwoRanksThatWaitForEachOtherAreABug) {
  std::vector<Plan> plans(2);
  for (int r = 0; r < 2; ++r) {
    Plan& plan = plans[r];
    const CommGroup a = plan.groups.add({.name = "a", .ranks = {0, 1}}, r);
    const CommGroup b = plan.groups.add({.name = "b", .ranks = {0, 1}}, r);
    plan.segments = {{.name = "update",
                      .tasks = {communication(AllReduce{.group = r == 0 ? a : b}, 1, 1, 0),
                                communication(AllReduce{.group = r == 0 ? b : a}, 1, 1, 0)}}};
  }
  const std::vector<PricedRank> ranks{{.plan = plans.data(), .rank = 0},
                                      {.plan = &plans[1], .rank = 1}};
  EXPECT_THROW(price_step(ranks, 1, clockwork(), {}), Bug);
}

}  // namespace
}  // namespace tokamak::price
