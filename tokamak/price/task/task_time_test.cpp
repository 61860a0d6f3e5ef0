#include "tokamak/price/task/task_time.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/ops/attention/attention.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/optimizer/adamw.h"
#include "tokamak/ops/vocab/cross_entropy.h"
#include "tokamak/price/step/segment_price.h"
#include "tokamak/price/task/test_tasks.h"

namespace tokamak::price {
namespace {

double seconds(const Task& task, const Machine& machine, const PriceOptions& options = {},
               bool is_first = true) {
  const GroupTable groups;
  return TaskTimes(groups, machine, options)
      .seconds(task, cost_of(task), {.is_first = is_first, .casts_weights = true});
}

CommGroup group_of(GroupTable& groups, const std::vector<int>& ranks, AxisSet axes,
                   GroupPurpose purpose = GroupPurpose::kGeneral) {
  return groups.add({.name = "group", .ranks = ranks, .axes = axes, .purpose = purpose}, 0);
}

TEST(TaskTime, WholeWavesRunAtTheRate) {
  const Machine machine = fast_memory();  // 100 SMs, one tile of 128 x 128
  const double one_wave = 2.0 * 1280 * 1280 * 4096 / 1e15;
  EXPECT_NEAR(gemm(machine, 1280, 1280, 4096), one_wave, 1e-9 * one_wave);
  EXPECT_NEAR(gemm(machine, 1280, 1280, 4096, Precision::kFp8), one_wave / 2, 1e-9 * one_wave);
  // One row of tiles more: a second wave, or two waves of half the depth each more.
  EXPECT_NEAR(gemm(machine, 1408, 1280, 4096), 1.5 * one_wave, 0.51 * one_wave);
  EXPECT_GT(gemm(machine, 1408, 1280, 4096), 1.1 * one_wave);
}

TEST(TaskTime, PowerBoundsWhatFillsTheDevice) {
  Machine machine = fast_memory();
  machine.device.gemm.sustained_efficiency = 0.75;
  const double flops = 2.0 * 1280 * 1280 * 4096;
  EXPECT_NEAR(gemm(machine, 1280, 1280, 4096), flops / 0.75e15, 1e-9 * flops / 0.75e15);
  // A few multiprocessors at the cold rate need less power than there is.
  EXPECT_EQ(gemm(machine, 128, 128, 4096), gemm(fast_memory(), 128, 128, 4096));
}

TEST(TaskTime, PowerOfAStepLeavesProductsTheirColdTime) {
  Machine machine = fast_memory();
  machine.device.gemm.sustained_efficiency = 0.75;
  machine.device.power.memory = 0.5;
  const double cold = gemm(fast_memory(), 1280, 1280, 4096);
  EXPECT_EQ(gemm(machine, 1280, 1280, 4096), cold);
  EXPECT_NEAR(gemm_seconds(1280, 1280, 4096, 0.0, Precision::kBf16, machine, {.rate = 0.8}),
              cold / 0.8, 1e-9 * cold);
}

// 100 tiles on 100 multiprocessors are one wave, on 99 two; nobody chooses other tiles for those.
TEST(TaskTime, HeldMultiprocessorsCostWaves) {
  const Machine machine = fast_memory();
  const double alone = gemm(machine, 1280, 1280, 4096);
  const auto beside = [&](int held) {
    return gemm_seconds(1280, 1280, 4096, 0.0, Precision::kBf16, machine, {.held_sms = held});
  };
  EXPECT_EQ(beside(0), alone);
  EXPECT_DOUBLE_EQ(beside(1), 2.0 * alone);
  EXPECT_DOUBLE_EQ(beside(50), 2.0 * alone);
  EXPECT_DOUBLE_EQ(beside(51), 3.0 * alone);
}

TEST(TaskTime, KernelsOfProductsBeginAndEndOnce) {
  Machine machine = fast_memory();
  machine.device.gemm.kernel_overhead = 512.0;
  const double deep = 2.0 * 1280 * 1280 * 8192 / 1e15;
  EXPECT_NEAR(gemm(machine, 1280, 1280, 8192), deep * (1.0 + 1.0 / 16.0), 1e-9 * deep);
  EXPECT_NEAR(gemm(machine, 12800, 1280, 8192), deep * (10.0 + 1.0 / 16.0), 1e-9 * deep);
}

Device drawing(double exponent, double memory_power, double collective_power) {
  Device device;
  device.gemm.clock_exponent = exponent;
  device.power.memory = memory_power;
  device.power.collective = collective_power;
  return device;
}

TEST(StepClock, ProductsAloneSettleWhereTheyWereMeasured) {
  for (const double exponent : {1.0, 0.7}) {
    const double settled = 0.8;
    const PowerUse use{.products_s = 3.0,
                       .drawn_s = 3.0 * std::pow(settled, -1.0 - 1.0 / exponent)};
    EXPECT_NEAR(std::pow(step_clock(use, drawing(exponent, 0.5, 1.0)), exponent), settled, 1e-9);
  }
}

TEST(StepClock, CoolKernelsLeaveProductsMore) {
  PowerUse use{.products_s = 1.0, .drawn_s = 1.5};
  const double alone = step_clock(use, drawing(1.0, 0.5, 1.0));
  EXPECT_NEAR(alone, std::sqrt(1.0 / 1.5), 1e-9);
  use.memory_s = 0.5;
  // 1.5 c = 1 / c + 0.25
  const double beside = step_clock(use, drawing(1.0, 0.5, 1.0));
  EXPECT_NEAR(1.5 * beside, 1.0 / beside + 0.25, 1e-9);
  EXPECT_GT(beside, alone);
  EXPECT_EQ(step_clock(use, drawing(1.0, 1.0, 1.0)), alone) << "as hot as products";
  use.memory_s = 2.0;
  EXPECT_EQ(step_clock(use, drawing(1.0, 0.5, 1.0)), 1.0);
  EXPECT_EQ(step_clock({.memory_s = 1.0}, drawing(1.0, 1.0, 1.0)), 1.0);
}

TEST(StepClock, CollectivesLeaveProductsMore) {
  const PowerUse use{.products_s = 1.0, .collective_s = 0.5, .drawn_s = 1.5};
  // 1.5 c = 1 / c + 0.3
  const double clock = step_clock(use, drawing(1.0, 0.9, 0.4));
  EXPECT_NEAR(1.5 * clock, 1.0 / clock + 0.3, 1e-9);
  EXPECT_NEAR(step_clock(use, drawing(1.0, 0.9, 1.0)), std::sqrt(1.0 / 1.5), 1e-9);
}

TEST(TaskTime, FewTilesAreSplitAlongTheDepth) {
  Machine machine = fast_memory();
  const double whole = 2.0 * 128 * 128 * 65536 * 100 / 1e15;  // one SM at a hundredth of the rate
  EXPECT_NEAR(gemm(machine, 128, 128, 65536), whole / 8, 1e-6 * whole);
  machine.device.memory.bytes_per_s = 4.0 * 8 * 128 * 128 / whole;  // 8 partial sums take as long
  EXPECT_NEAR(gemm(machine, 128, 128, 65536), 0.75 * whole, 1e-6 * whole) << "2 or 4 parts";
}

TEST(TaskTime, ShallowProductsPayForTheirTilesBeginAndEnd) {
  Machine machine = fast_memory();
  machine.device.gemm.k_overhead = 512.0;
  const double deep = 2.0 * 1280 * 1280 * 8192 / 1e15;
  EXPECT_NEAR(gemm(machine, 1280, 1280, 8192), deep * (1.0 + 1.0 / 16.0), 1e-9 * deep);
  EXPECT_NEAR(gemm(machine, 1280, 1280, 512), 2.0 * deep / 16.0, 1e-9 * deep);
}

// Of 128 bytes: 64 elements of bf16, 128 of fp8.
TEST(TaskTime, RowsOffTheLinesCost) {
  Machine machine = fast_memory();
  machine.device.gemm.alignment_share = 0.5;
  const double aligned = gemm(machine, 1280, 1280, 4096);
  EXPECT_NEAR(gemm(machine, 1280, 1280, 4096 - 64), aligned * 4032 / 4096, 1e-9 * aligned);
  EXPECT_NEAR(gemm(machine, 1280, 1280, 4096 - 32), 2.0 * aligned * 4064 / 4096, 1e-9 * aligned);
  EXPECT_NEAR(gemm(machine, 1280, 1280, 4096 - 8), 8.0 * aligned * 4088 / 4096, 1e-9 * aligned);
  EXPECT_NEAR(gemm(machine, 1280, 1280, 4096 - 64, Precision::kFp8), aligned * 4032 / 4096,
              1e-9 * aligned);
}

TEST(TaskTime, OddRowsCostMost) {
  Machine machine = fast_memory();
  machine.device.gemm.alignment_share = 0.9;
  machine.device.gemm.odd_share = 0.25;
  const double even = gemm(machine, 1280, 1280, 4096);
  EXPECT_NEAR(gemm(machine, 1280, 1280, 4095), 4.0 * even * 4095 / 4096, 1e-9 * even);
  EXPECT_LT(gemm(machine, 1280, 1280, 4094), 2.0 * even);
}

// Tokens are no row of any operand in bf16; in fp8 gradients of weights read them along the sum.
TEST(TaskTime, TokensNeedNoAlignment) {
  Machine machine = fast_memory();
  machine.device.gemm.alignment_share = 0.5;
  machine.device.gemm.odd_share = 0.01;
  const auto of = [&](int64_t tokens, Precision precision) {
    const auto x = bf16({tokens, 1280});
    const auto w = bf16({1280, 1280});
    const PriceOptions options{.linear = precision};
    return std::pair(seconds(task_of(Linear{}, {x, w}, {x}), machine, options),
                     seconds(task_of(LinearGradWeight{}, {x, x}, {w}), machine, options));
  };
  const auto [y, dw] = of(4096, Precision::kBf16);
  const auto [odd_y, odd_dw] = of(4095, Precision::kBf16);
  EXPECT_LE(odd_y, 1.01 * y);
  EXPECT_LE(odd_dw, 1.01 * dw);
  const auto [low_y, low_dw] = of(4096, Precision::kFp8);
  const auto [odd_low_y, odd_low_dw] = of(4095, Precision::kFp8);
  EXPECT_LE(odd_low_y, 1.01 * low_y);
  EXPECT_GT(odd_low_dw, 10.0 * low_dw);
}

TEST(TaskTime, LossesThatAreNotFusedMoveTheirLogits) {
  Machine machine = clockwork();
  const auto logits = bf16({16, 32});
  const Operand stats{.type = {.dtype = DType::kF32, .dims = {16, 3}}, .strides = {3, 1}};
  const Operand labels{.type = {.dtype = DType::kI32, .dims = {16}}, .strides = {1}};
  const Task task = task_of(SoftmaxStats{}, {logits, labels}, {stats});
  const double fused = seconds(task, machine);
  machine.software.logit_bytes = 28.0;
  EXPECT_NEAR(seconds(task, machine), 28.0 * 16 * 32 / 8.0, 1e-9);
  EXPECT_GT(seconds(task, machine), fused);
}

TEST(TaskTime, NoRateIsAnError) {
  EXPECT_THROW(gemm(clockwork(), 128, 128, 128, Precision::kFp4), Error);
}

TEST(TaskTime, MemoryTakesHalfTheRateAtHalfBytes) {
  Machine machine = clockwork();
  machine.device.memory.half_bytes = 80.0;
  EXPECT_DOUBLE_EQ(memory_seconds(80.0, machine), 20.0);
  EXPECT_DOUBLE_EQ(memory_seconds(0.0, machine), 0.0);
  EXPECT_NEAR(memory_seconds(8e6, machine), 1e6, 11.0);
}

// Both directions at once, and the device memory next to them.
TEST(TaskTime, HostMemoryIsReachedOverTheLink) {
  Machine machine = fast_memory();
  machine.device.launch_s = 0.0;
  machine.device.copies.from_host_bytes_per_s = 4.0;
  machine.device.copies.to_host_bytes_per_s = 2.0;
  const AdamW op;
  Task task{.rules = &kRules<AdamW>, .op = std::make_shared<const AdamW>(op)};
  for (const auto& [dtype, dims] : {std::pair{DType::kF32, Dims{8}},
                                    {DType::kF32, Dims{8}},
                                    {DType::kF32, Dims{8}},
                                    {DType::kF32, Dims{8}},
                                    {DType::kF64, Dims{4}},
                                    {DType::kF32, Dims{1}}})
    task.in.push_back({.arena = ArenaKind::kState, .type = {.dtype = dtype, .dims = dims}});
  for (size_t k = 0; k < 3; ++k) task.out.push_back(task.in[k]);
  task.accumulate.resize(3);
  EXPECT_LT(seconds(task, machine), 1e-9);
  for (const size_t k : {1, 2}) task.in[k].arena = ArenaKind::kHost;
  EXPECT_DOUBLE_EQ(seconds(task, machine), 64.0 / 4.0);
  for (const size_t k : {1, 2}) task.out[k].arena = ArenaKind::kHost;
  EXPECT_DOUBLE_EQ(seconds(task, machine), 64.0 / 2.0);
}

TEST(TaskTime, OtherPrecisionsAreForProductsInBlocks) {
  Machine machine = fast_memory();
  const Task product =
      task_of(Linear{}, {bf16({1280, 4096}), bf16({1280, 4096})}, {bf16({1280, 1280})});
  Task head = product;
  head.label.block = -1;
  const PriceOptions fp8{.linear = Precision::kFp8};
  EXPECT_NEAR(seconds(product, machine, fp8), seconds(product, machine) / 2, 1e-12);
  EXPECT_DOUBLE_EQ(seconds(head, machine, fp8), seconds(head, machine));
  // What is cast: 4 bytes for each element of x, of the weights in the first microbatch.
  machine.device.memory.bytes_per_s = 1e13;
  const double cast = 4.0 * 1280 * 4096 / 1e13;
  const double cold = seconds(product, machine, fp8, true);
  const double warm = seconds(product, machine, fp8, false);
  EXPECT_NEAR(cold - warm, cast, 1e-9 * cast);
  EXPECT_NEAR(warm, seconds(product, fast_memory(), fp8) + cast, 1e-6 * cast);
}

TEST(TaskTime, AttentionFollowsHeadDimAndOccupancy) {
  const Machine machine = fast_memory();
  const auto forward = [&](int64_t heads, int64_t tokens, int64_t dim) {
    const Dims dims{1, tokens, heads, dim};
    const Task task = task_of(
        Attention{}, {bf16(dims), bf16(dims), bf16(dims)},
        {bf16(dims), {.type = {.dtype = DType::kF32, .dims = {1, heads, tokens}}, .strides = {}}});
    return seconds(task, machine) / cost_of(task).flops;
  };
  // 100 heads of 10 tiles each: whole waves. Half a tile more of each row's diagonal.
  const double pairs = 1280.0 * 1281.0 / 2.0;
  EXPECT_NEAR(forward(100, 1280, 128), (1.0 + 64.0 * 1280.0 / pairs) / (1e15 * 0.8), 1e-18);
  EXPECT_NEAR(forward(50, 128, 128), 2.0 * forward(100, 128, 128), 1e-18) << "half the SMs";
  EXPECT_GT(forward(100, 1280, 64), 1.2 * forward(100, 1280, 128));
  EXPECT_GT(forward(100, 1280, 108), 1.15 * forward(100, 1280, 128)) << "padded to 128";
}

TEST(TaskTime, TilesOfAttentionCostAndEndUnevenly) {
  Machine machine = fast_memory();
  const Dims dims{1, 1280, 100, 128};
  const Operand stats{.type = {.dtype = DType::kF32, .dims = {1, 100, 1280}}, .strides = {}};
  const Task task = task_of(Attention{}, {bf16(dims), bf16(dims), bf16(dims)}, {bf16(dims), stats});
  const double base = seconds(task, machine);
  const double keys = 1281.0 / 2.0 + 64.0;  // of a query, those of its tile on the diagonal too
  machine.device.attention_forward.overhead = 100.0;
  EXPECT_NEAR(seconds(task, machine), base * (keys + 100.0) / keys, 1e-9 * base);
  machine.device.attention_forward.overhead = 0.0;
  machine.device.attention_forward.tail = 2.0;
  const double unevenness = 2.0 * 1280.0 / 1281.0 - 1.0;
  EXPECT_NEAR(seconds(task, machine), base * (10.0 + 2.0 * unevenness) / 10.0, 1e-9 * base);
}

TEST(TaskTime, AWindowLeavesItsPairsAndTheTilesOfBothEdges) {
  const Machine machine = fast_memory();
  const Dims dims{1, 1280, 100, 128};
  const Operand stats{.type = {.dtype = DType::kF32, .dims = {1, 100, 1280}}, .strides = {}};
  const auto forward = [&](int64_t window) {
    return seconds(task_of(Attention{.window = window}, {bf16(dims), bf16(dims), bf16(dims)},
                           {bf16(dims), stats}),
                   machine);
  };
  const double all = 1280.0 * 1281.0 / 2.0 + 64.0 * 1280.0;
  const double seen = 256.0 * 257.0 / 2.0 + 1024.0 * 256.0 + 128.0 * 1280.0;
  EXPECT_NEAR(forward(256), forward(0) * seen / all, 1e-9 * forward(0));
  EXPECT_EQ(forward(1280), forward(0));
}

TEST(TaskTime, AttentionThatIsNotFusedWantsHeadsOfWholeVectors) {
  Machine machine = fast_memory();
  machine.software.attention_pair_bytes = 1e-9;
  const auto forward = [&](int64_t dim) {
    const Dims dims{1, 1280, 100, dim};
    const Task task = task_of(
        Attention{}, {bf16(dims), bf16(dims), bf16(dims)},
        {bf16(dims), {.type = {.dtype = DType::kF32, .dims = {1, 100, 1280}}, .strides = {}}});
    return seconds(task, machine);
  };
  EXPECT_LT(forward(144), 2.0 * forward(128));
  EXPECT_GT(forward(150), 100.0 * forward(144)) << "vector units: a thousandth of the rate";
}

TEST(TaskTime, CollectivesMoveTheWholeBuffer) {
  Machine machine = clockwork();
  machine.levels[0].bytes_per_s = 4.0;  // an fp32 a second
  GroupTable groups;
  const CommGroup group = group_of(groups, {0, 1, 2, 3}, {MeshAxis::kTp});
  const CommGroup pair = group_of(groups, {0, 1}, {MeshAxis::kPp}, GroupPurpose::kMessage);
  const TaskTimes times(groups, machine, {});
  const auto of = [&](const Task& task) { return times.seconds(task, cost_of(task), {}); };
  EXPECT_NEAR(of(communication(AllGather{.group = group}, 100, 400, 1)), 300.0, 1e-9);
  EXPECT_NEAR(of(communication(ReduceScatter{.group = group}, 400, 100, 1)), 300.0, 1e-9);
  EXPECT_NEAR(of(communication(AllReduce{.group = group}, 400, 400, 1)), 600.0, 1e-9);
  EXPECT_NEAR(of(communication(AllToAll{.group = group}, 400, 400, 1)), 300.0, 1e-9);
  EXPECT_NEAR(of(communication(Send{.group = pair}, 100, 0, 1)), 100.0, 1e-9);
  EXPECT_NEAR(of(communication(Recv{.group = pair, .type = floats(100).type}, 0, 100, 1)), 100.0,
              1e-9);
  EXPECT_NEAR(of(communication(Shift{.group = group}, 100, 100, 1)), 100.0, 1e-9);
}

TEST(TaskTime, CollectivesTakeTheLinksOfTheirOutermostLevel) {
  const Machine machine = load_machine("h100");
  GroupTable groups;
  const CommGroup tp = group_of(groups, {0, 1, 2, 3, 4, 5, 6, 7}, {MeshAxis::kTp});
  const CommGroup dp = group_of(groups, {0, 8, 16, 24}, {MeshAxis::kDpShard});
  const TaskTimes times(groups, machine, {});
  EXPECT_EQ(times.link(communication(AllGather{.group = tp}, 100, 800, 1)), 0);
  EXPECT_EQ(times.link(communication(AllGather{.group = dp}, 100, 400, 1)), 1);
}

TEST(TaskTime, SoftwareHidesAndShrinksCommunication) {
  Machine machine = clockwork();
  machine.levels[0].bytes_per_s = 4.0;
  GroupTable groups;
  const CommGroup tp = group_of(groups, {0, 1, 2, 3}, {MeshAxis::kTp});
  const CommGroup dp =
      group_of(groups, {0, 1, 2, 3}, {MeshAxis::kDpShard, MeshAxis::kCp}, GroupPurpose::kReduce);
  const CommGroup cp = group_of(groups, {0, 1, 2, 3}, {MeshAxis::kCp});
  const Task gather = communication(AllGather{.group = tp}, 100, 400, 1);
  const Task reduce = communication(ReduceScatter{.group = dp}, 400, 100, 1);
  const auto of = [&](const Task& task, bool is_low) {
    const PriceOptions options{.linear = Precision::kFp8};
    return TaskTimes(groups, machine, options).seconds(task, cost_of(task), {.is_low = is_low});
  };
  EXPECT_NEAR(of(gather, false), 300.0, 1e-9);
  EXPECT_NEAR(of(gather, true), 150.0, 1e-9) << "sent in fp8";
  machine.software.tensor_parallel_overlap = 0.75;
  EXPECT_NEAR(of(gather, false), 75.0, 1e-9);
  EXPECT_NEAR(of(reduce, false), 300.0, 1e-9);
  const Task values = communication(ReduceScatter{.group = cp}, 400, 100, 1);
  EXPECT_NEAR(of(values, false), 300.0, 1e-9);
  machine.software.gradient_bytes = 2.0;
  EXPECT_NEAR(of(reduce, false), 150.0, 1e-9);
  EXPECT_NEAR(of(values, false), 300.0, 1e-9) << "gradients of keys and values, by their own type";
}

// Of tp 8 with 2 heads of keys and values, 4 ranks hold the same ones.
TEST(TaskTime, SumsOfGradientsOverTpFeedNoProduct) {
  Machine machine = clockwork();
  machine.levels[0].bytes_per_s = 4.0;
  machine.software.tensor_parallel_overlap = 0.75;
  GroupTable groups;
  const CommGroup tp = group_of(groups, {0, 1, 2, 3, 4, 5, 6, 7}, {MeshAxis::kTp});
  const CommGroup partial =
      group_of(groups, {0, 1, 2, 3, 4, 5, 6, 7}, {MeshAxis::kTp}, GroupPurpose::kReduce);
  const CommGroup replicas =
      group_of(groups, {0, 1, 2, 3}, {MeshAxis::kTp}, GroupPurpose::kReplicas);
  const CommGroup pair = group_of(groups, {0, 8}, {MeshAxis::kPp}, GroupPurpose::kMessage);
  PriceOptions options;
  const auto of = [&](const Task& task) {
    return TaskTimes(groups, machine, options).seconds(task, cost_of(task), {});
  };
  EXPECT_NEAR(of(communication(AllGather{.group = tp}, 100, 800, 1)), 0.25 * 700.0, 1e-9);
  EXPECT_NEAR(of(communication(AllReduce{.group = partial}, 800, 800, 1)), 1400.0, 1e-9);
  EXPECT_NEAR(of(communication(AllReduce{.group = replicas}, 800, 800, 1)), 1200.0, 1e-9);
  options.splits_messages = true;
  EXPECT_NEAR(of(communication(Send{.group = pair}, 800, 0, 1)), 100.0 + 700.0, 1e-9);
}

// Two matmuls of one block read the same input, which is brought to fp8 once.
TEST(TaskTime, CastsDrawThePowerOfMemory) {
  Machine machine = clockwork();
  machine.device.memory.bytes_per_s = 1e6;
  machine.device.power.memory = 0.5;
  Operand x = bf16({64, 64});
  x.offset = 1 << 24;
  Operand weight = bf16({64, 64});
  Plan plan;
  plan.segments.resize(1);
  for (int t = 0; t < 2; ++t) {
    weight.offset = (t + 1) << 20;
    Operand y = bf16({64, 64});
    y.offset = (t + 1) * 8192;
    plan.segments[0].tasks.push_back(task_of(Linear{}, {x, weight}, {y}));
  }
  const auto use_in = [&](Precision precision) {
    const PriceOptions options{.linear = precision};
    PowerUse use;
    SegmentPrices(plan, machine, options).add_power(0, 3.0, use);
    return use;
  };
  const PowerUse fp8 = use_in(Precision::kFp8);
  const double cast_s = 64 * 64 * 4.0 / 1e6;
  EXPECT_NEAR(fp8.memory_s, 3.0 * cast_s, 1e-9);
  EXPECT_NEAR(fp8.products_s, 3.0 * 2.0 * 64 * 64 * 4.0 / 1e6, 1e-9) << "two operands, an output";
  EXPECT_EQ(use_in(Precision::kBf16).memory_s, 0.0);
}

TEST(TaskTime, WorkThatIsNotStatedHasNoPrice) {
  GroupTable groups;
  const CommGroup pair = group_of(groups, {0, 1}, {MeshAxis::kDpShard});
  const Machine machine = clockwork();
  const PriceOptions options;
  const TaskTimes times(groups, machine, options);
  const Operand x = bf16({64, 64});
  const Task product = task_of(Linear{}, {x, x}, {x});
  const Task gather = task_of(AllGather{.group = pair}, {x}, {bf16({128, 64})});
  for (const auto kind : {Cost::Kind::kUnstated, Cost::Kind::kGemm, Cost::Kind::kAttention})
    EXPECT_THROW(times.seconds(product, {.kind = kind}, {}), Bug) << static_cast<int>(kind);
  EXPECT_THROW(times.seconds(gather, {.kind = Cost::Kind::kCollective}, {}), Bug);
  EXPECT_GT(times.seconds(product, cost_of(product), {}), 0.0);
  EXPECT_GT(times.seconds(gather, cost_of(gather), {}), 0.0);
}

TEST(TaskTime, InputsAreCastOnce) {
  const auto at = [](Operand o, int64_t offset) {
    o.offset = offset;
    return o;
  };
  const Operand x = at(bf16({64, 64}), 0);
  const Task query =
      task_of(Linear{}, {x, at(bf16({64, 64}), 1 << 20)}, {at(bf16({64, 64}), 8192)});
  const Task key = task_of(Linear{}, {x, at(bf16({64, 64}), 2 << 20)}, {at(bf16({64, 64}), 16384)});
  const CommGroup group{.id = 0, .size = 2};
  const Task gather = task_of(AllGather{.group = group}, {at(bf16({32, 64}), 32768)}, {x});
  const auto flow_of = [](const std::vector<Task>& tasks) {
    std::vector<Cost> costs(tasks.size());
    std::transform(tasks.begin(), tasks.end(), costs.begin(), cost_of);
    return low_precision_flow(tasks, costs);
  };
  const LowPrecisionFlow flow = flow_of({query, key, query});
  EXPECT_EQ(flow.casts, (std::vector<uint8_t>{1, 0, 0}));
  EXPECT_EQ(flow.casts_weights, (std::vector<uint8_t>{1, 1, 0}));
  const LowPrecisionFlow sent = flow_of({query, gather, key});
  EXPECT_EQ(sent.casts, (std::vector<uint8_t>{1, 0, 0})) << "what is gathered was cast before";
  EXPECT_EQ(sent.is_low, (std::vector<uint8_t>{0, 1, 0}));
}

}  // namespace
}  // namespace tokamak::price
