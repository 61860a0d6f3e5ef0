#include "tokamak/run/op_table.h"

#include <gtest/gtest.h>

#include "tokamak/core/json.h"
#include "tokamak/ops/attention/attention.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/elementwise/add.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/run/profile_trace.h"
#include "tokamak/run/test_tasks.h"

namespace tokamak {
namespace {

constexpr DeviceRates kRates{.gemm_flops_bf16 = 1e6, .bytes_per_s = 1e5};

TensorType bf16(Dims dims) {
  return {.dtype = DType::kBF16, .dims = std::move(dims)};
}

// 2 * 8 * 4 * 16 = 1024 flops; 2 * (8 * 16 + 4 * 16 + 8 * 4) = 448 bytes.
Task product() {
  return make_task(Linear{}, {bf16({8, 16}), bf16({4, 16})});
}

// 3 * 200 bytes.
Task sum() {
  return make_task(Add{}, {bf16({10, 10}), bf16({10, 10})});
}

// Sends 3 * 100 bytes.
Task gather(int stream) {
  return make_task(AllGather{.group = {.id = 0, .size = 4}}, {bf16({50})}, stream);
}

const GroupTable kGroups{.entries = {{.name = "dp_shard", .ranks = {0, 1, 2, 3}}}};

TEST(Floor, IsTheLargerOfFlopsAndBytes) {
  EXPECT_DOUBLE_EQ(floor_seconds(product(), kRates), 448 / 1e5);
  EXPECT_DOUBLE_EQ(floor_seconds(product(), {.gemm_flops_bf16 = 1e5, .bytes_per_s = 1e5}),
                   1024 / 1e5);
  EXPECT_DOUBLE_EQ(floor_seconds(sum(), kRates), 600 / 1e5);
}

TEST(Floor, OfAnOutputThatAddsCountsWhatItReads) {
  Task task = sum();
  task.accumulate[0] = AccumulateMode::kAlways;
  EXPECT_DOUBLE_EQ(floor_seconds(task, kRates), 800 / 1e5);
}

TEST(LaunchBound, IsAPlanOfManySmallTasks) {
  const auto plan_of = [](Task task) {
    Plan plan;
    plan.segments = {{.name = "s", .tasks = {std::move(task)}}};
    return plan;
  };
  // 3 us are 5 % of what 4.2 TB/s take for 252 MB: for 6 bytes an element 42 million.
  const auto sum_of = [](int64_t n) { return make_task(Add{}, {bf16({n}), bf16({n})}); };
  EXPECT_TRUE(is_launch_bound(plan_of(sum_of(41'900'000)), {}));
  EXPECT_FALSE(is_launch_bound(plan_of(sum_of(42'100'000)), {}));
  EXPECT_FALSE(is_launch_bound(plan_of(gather(1)), {}));
}

TEST(Floor, OfAttentionCountsCausalPairs) {
  const Task task =
      make_task(Attention{}, {bf16({1, 4, 2, 8}), bf16({1, 4, 2, 8}), bf16({1, 4, 2, 8})});
  EXPECT_DOUBLE_EQ(floor_seconds(task, {.gemm_flops_bf16 = 1.0, .bytes_per_s = 1e9}),
                   2.0 * 2.0 * 2 * 8 * (1 + 2 + 3 + 4));
}

TEST(Floor, IsUnknownWithoutTheRateThatBounds) {
  EXPECT_EQ(floor_seconds(product(), {.bytes_per_s = 1e5}), 0.0);
  EXPECT_EQ(floor_seconds(sum(), {.gemm_flops_bf16 = 1e6}), 0.0);
  EXPECT_EQ(floor_seconds(gather(1), kRates), 0.0);
}

TEST(OpTable, SumsCallsAndSortsTheSlowestFirst) {
  const Task linear = product();
  const Task wide = make_task(Linear{}, {bf16({8, 16}), bf16({32, 16})});
  const Task add = sum();
  const std::vector<TaskSpan> spans{
      {&linear, 0.0, 0.010}, {&add, 0.010, 0.022}, {&linear, 0.022, 0.034}, {&wide, 0.034, 0.035}};
  const auto by_op = time_by_op(spans, kRates);
  ASSERT_EQ(by_op.size(), 2U);
  EXPECT_EQ(by_op[0].op, "linear");
  EXPECT_EQ(by_op[0].calls, 3);
  EXPECT_NEAR(by_op[0].seconds, 0.023, 1e-12);
  EXPECT_EQ(by_op[0].flops, 2 * 1024.0 + 8192.0);
  EXPECT_EQ(by_op[1].bytes, 600.0);
  EXPECT_NEAR(by_op[1].share_of_floor(), 0.5, 1e-9);

  const auto by_shape = time_by_op(spans, kRates, OpGrouping::kByShape);
  ASSERT_EQ(by_shape.size(), 3U);
  EXPECT_EQ(by_shape[0].shape, "8 x 4 x 16");
  EXPECT_EQ(by_shape[0].variant, linear.variant->name);
  EXPECT_EQ(by_shape[1].shape, "[10, 10]");
  EXPECT_EQ(by_shape[2].shape, "8 x 32 x 16");
}

// Stream 0: product 0-10, nothing, sum 16-20; stream 1: gather 5-13. Idle 13-16.
TEST(StepSummary, PartsAddUpToTheStep) {
  const Task linear = product();
  const Task add = sum();
  const Task all_gather = gather(1);
  const std::vector<TaskSpan> spans{
      {&linear, 1.0, 11.0}, {&all_gather, 6.0, 14.0}, {&add, 17.0, 21.0}};
  const StepSummary s = summarize(spans, kRates, kGroups);
  EXPECT_DOUBLE_EQ(s.wall_s, 20.0);
  EXPECT_DOUBLE_EQ(s.parts[StepSummary::kGemm].seconds, 10.0);
  EXPECT_DOUBLE_EQ(s.parts[StepSummary::kGemm].floor_s, 448 / 1e5);
  EXPECT_DOUBLE_EQ(s.parts[StepSummary::kMemoryBound].seconds, 4.0);
  EXPECT_DOUBLE_EQ(s.floor_s(), (448 + 600) / 1e5);
  EXPECT_DOUBLE_EQ(s.parts[StepSummary::kExposedComm].seconds, 3.0);
  EXPECT_DOUBLE_EQ(s.parts[StepSummary::kIdle].seconds, 3.0);
  ASSERT_EQ(s.groups.size(), 1U);
  EXPECT_EQ(s.groups[0].group, "dp_shard");
  EXPECT_EQ(s.groups[0].op, "all_gather");
  EXPECT_DOUBLE_EQ(s.groups[0].bus_bytes_per_s(), 300.0 / 8.0);
}

TEST(StepSummary, CountsCommunicationOfStreamZeroAsExposed) {
  const Task linear = product();
  const Task all_gather = gather(0);
  const std::vector<TaskSpan> spans{{&linear, 0.0, 1.0}, {&all_gather, 1.0, 3.0}};
  const StepSummary s = summarize(spans, kRates, kGroups);
  EXPECT_DOUBLE_EQ(s.parts[StepSummary::kExposedComm].seconds, 2.0);
  EXPECT_DOUBLE_EQ(s.parts[StepSummary::kIdle].seconds, 0.0);
}

TEST(StepSummary, OfNothingIsZero) {
  EXPECT_EQ(summarize({}, kRates, {}).wall_s, 0.0);
}

TEST(OpReport, NamesRatesAndSharesOfTheFloor) {
  const Task linear = product();
  const Task all_gather = gather(1);
  const std::vector<TaskSpan> spans{{&linear, 0.0, 0.00896}, {&all_gather, 0.001, 0.002}};
  const std::string text = op_report(spans, kRates, kGroups);
  for (const char* part :
       {"step 8.960 ms, floor 4.480 ms (50.0 %)", "8 x 4 x 16", "    8.960    100.0", "50.0\n",
        "exposed communication", "dp_shard", "all_gather"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(ChromeTrace, NamesLanesByTheirGroupsAndCountsMemory) {
  Plan plan;
  plan.groups = kGroups;
  plan.arena_bytes[ArenaKind::kState] = 3 << 20;
  plan.segments.push_back({.name = "s", .tasks = {sum(), gather(2)}});
  const auto& tasks = plan.segments[0].tasks;
  const std::vector<TaskSpan> spans{{&tasks[0], 0.0, 1.0}, {&tasks[1], 0.5, 2.0}};
  const Json trace = parse_json(chrome_trace(spans, plan, 7), "trace");
  std::map<int, std::string> lanes;
  int counters = 0;
  for (const Json& event : trace.at("traceEvents")) {
    EXPECT_EQ(event.at("pid").get<int>(), 7);
    if (event.at("name") == "thread_name")
      lanes[event.at("tid").get<int>()] = event.at("args").at("name").get<std::string>();
    if (event.at("ph") != "C") continue;
    ++counters;
    EXPECT_EQ(event.at("args").at("state").get<double>(), 3.0);
  }
  EXPECT_EQ(lanes, (std::map<int, std::string>{{0, "compute"}, {2, "gather dp_shard"}}));
  EXPECT_EQ(counters, 1);
}

}  // namespace
}  // namespace tokamak
