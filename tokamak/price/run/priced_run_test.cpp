#include "tokamak/price/run/priced_run.h"

#include <chrono>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/core/json.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/price/machine/machine_key.h"
#include "tokamak/price/report/report_of.h"
#include "tokamak/price/run/test_request.h"
#include "tokamak/run/run_of_config.h"

namespace tokamak {
namespace {

// Every axis of the mesh, in little.
PriceRequest small_mesh(int cp = 2, const std::string& machine = "h100") {
  return request_of(
      {"--model.flavor=1B", "--training.seq_len=2048", "--training.local_batch_size=4",
       "--parallelism.pipeline_parallel_degree=2", "--parallelism.tensor_parallel_degree=2",
       fmt::format("--parallelism.context_parallel_degree={}", cp),
       "--parallelism.data_parallel_replicate_degree=2",
       "--parallelism.data_parallel_shard_degree=2"},
      int64_t{16} * cp, machine);
}

TEST(PricedRun, OneRankOfEachStageStandsForAll) {
  struct Case {
    std::string machine;
    int cp;
    double bound;
  };

  // Ranks of cp have equal work in tiles of unequal shapes. Where kernels and messages slow each
  // other, ranks that do the same differ by which of two that begin at once is begun first.
  for (const Case& c : {Case{"h100-published", 1, 1e-9}, Case{"h100-published", 2, 0.02},
                        Case{"h100", 1, 0.004}, Case{"h100", 2, 0.02}}) {
    SCOPED_TRACE(fmt::format("{}, cp {}", c.machine, c.cp));
    PriceRequest request = small_mesh(c.cp, c.machine);
    const PricedRun some = price_run(request);
    EXPECT_EQ(some.planned.ranks().size(), 2U);
    request.all_ranks = true;
    const PricedRun all = price_run(request);
    EXPECT_EQ(all.planned.ranks().size(), 16U * static_cast<size_t>(c.cp));
    EXPECT_NEAR(some.step.seconds, all.step.seconds, c.bound * all.step.seconds);
  }
}

// On one host, where the ranks of a group lay out their memory alike, as the runtime asks.
TEST(PricedRun, CopyEnginesGatherWhereTheyCan) {
  const auto ratio = [](std::vector<std::string> words, int64_t num_gpus) {
    words.insert(words.end(), {"--training.mixed_precision_param=bfloat16",
                               "--activation_checkpoint.mode=none"});
    const double seconds = seconds_of(request_of(words, num_gpus, "h200"));
    words.emplace_back("--parallelism.copy_engine_all_gather=never");
    return seconds / seconds_of(request_of(words, num_gpus, "h200"));
  };
  const std::string eight = "--model.flavor=8B";
  EXPECT_LT(ratio({eight}, 8), 0.999);
  EXPECT_EQ(ratio({eight}, 16), 1.0);
  EXPECT_EQ(ratio({eight, "--parallelism.context_parallel_degree=2"}, 8), 1.0);
  EXPECT_EQ(ratio({eight, "--parallelism.data_parallel_type=ddp"}, 8), 1.0);
  const std::string tp = "--parallelism.tensor_parallel_degree=2";
  const std::string again = "--activation_checkpoint.gather_again";
  const std::string uncovered = "--parallelism.cover_tensor_parallel_collectives=false";
  EXPECT_EQ(ratio({"--model.flavor=1B", tp, uncovered}, 2), 1.0);
  EXPECT_LT(ratio({"--model.flavor=1B", tp}, 2), 0.999);
  EXPECT_LT(ratio({"--model.flavor=1B", tp, again}, 2), 0.999);
  // 50,257 words do not divide by 2.
  EXPECT_EQ(
      ratio({"--model.name=gpt2", "--model.flavor=355M", "--training.seq_len=1024", tp, again}, 2),
      1.0);
}

// At the drain a stage hands its input gradient on before its reductions have ended.
TEST(PricedRun, ReductionsDoNotHoldUpThePipeline) {
  for (const char* schedule : {"1F1B", "Interleaved1F1B", "InterleavedZeroBubble"}) {
    PriceRequest request = request_of(
        {"--model.flavor=1B", "--training.seq_len=2048", "--training.local_batch_size=8",
         "--parallelism.pipeline_parallel_microbatch_size=1",
         "--parallelism.pipeline_parallel_degree=4", "--parallelism.data_parallel_shard_degree=4",
         fmt::format("--parallelism.pipeline_parallel_schedule={}", schedule)},
        16);
    request.wants_spans = true;
    double seconds[2] = {};
    for (const int overlap : {0, 1}) {
      request.machine.software.reduction_overlap = overlap;
      const PricedRun run = price_run(request);
      seconds[overlap] = run.step.seconds;
      std::vector<double> reduced_s(4, 0.0);
      std::vector<double> sent_s(4, 0.0);
      for (const price::PricedSpan& span : run.spans) {
        const auto rank = static_cast<size_t>(span.rank);
        if (span.task->when == When::kLastMicrobatch)
          reduced_s[rank] = std::max(reduced_s[rank], span.end_s);
        if (span.task->rules == &kRules<Send> && span.task->label.phase == Phase::kBackward)
          sent_s[rank] = std::max(sent_s[rank], span.begin_s);
      }
      EXPECT_GT(reduced_s[0], 0.0);
      if (schedule != std::string("1F1B")) continue;
      for (size_t rank = 1; rank < 4; ++rank)
        EXPECT_EQ(sent_s[rank] < reduced_s[rank], overlap == 1) << schedule << rank;
    }
    EXPECT_LT(seconds[1], seconds[0]) << schedule;
  }
}

// What messages add to kernels is no waiting.
TEST(PricedRun, KernelsBesideMessagesAreNoBubble) {
  PriceRequest request =
      request_of({"--model.flavor=8B", "--training.seq_len=8192", "--training.local_batch_size=16",
                  "--parallelism.pipeline_parallel_microbatch_size=1",
                  "--parallelism.pipeline_parallel_degree=4"},
                 4);
  double gemm_s[2] = {};
  double bubble[2] = {};
  for (const int slows : {0, 1}) {
    price::set_number(request.machine, "software.message_slowdown", slows == 1 ? 3.0 : 1.0);
    const price::StepPrice step = price_run(request).step;
    gemm_s[slows] = step.by_category[price::Category::kGemm];
    bubble[slows] = step.bubble_fraction;
    const double sum = std::accumulate(step.by_category.begin(), step.by_category.end(), 0.0);
    EXPECT_NEAR(sum, step.seconds, 1e-9 * step.seconds);
  }
  EXPECT_GT(gemm_s[1], 1.3 * gemm_s[0]);
  EXPECT_LT(bubble[1], bubble[0] + 0.15);
}

TEST(PricedRun, PlansAreThoseOfARunAlone) {
  const PriceRequest request = small_mesh();
  const PricedRun priced = price_run(request);
  for (const PlannedRanks::Rank& run : priced.planned.ranks()) {
    const PlannedRun alone(
        priced.model,
        shape_of(request.config, priced.model, {.degrees = request.degrees, .rank = run.rank}),
        {.backend = "gpu", .arch = 90});
    EXPECT_EQ(to_text(*run.plan), to_text(alone.plan()));
    EXPECT_EQ(run.peak_bytes(), alone.peak_bytes());
  }
}

// Loops and V shapes, whole and split backwards, stages of unequal depth and without a layer.
TEST(PricedRun, TwinsCostWhatTheirOwnPlansCost) {
  struct Case {
    const char* schedule;
    int num_ranks;
    int layers_per_stage;  // 0 = the schedule's own stages
    int ends_weigh;
  };

  for (const Case& c : {Case{"1F1B", 5, 0, 0}, Case{"Interleaved1F1B", 4, 2, 0},
                        Case{"InterleavedZeroBubble", 6, 3, 1}, Case{"ZBVZeroBubble", 5, 0, 0},
                        Case{"ZBVZeroBubble", 9, 0, 1}}) {
    PriceRequest request = request_of(
        {"--model.flavor=1B", "--training.seq_len=2048", "--parallelism.tensor_parallel_degree=2"},
        2);
    ParallelismConfig& p = request.config.parallelism;
    p.pipeline_parallel_degree = c.num_ranks;
    p.data_parallel_shard_degree = 2;
    p.pipeline_parallel_schedule = c.schedule;
    if (c.layers_per_stage > 0) p.pipeline_parallel_layers_per_stage = c.layers_per_stage;
    p.pipeline_parallel_first_stage_less_layers = c.ends_weigh;
    p.pipeline_parallel_last_stage_less_layers = c.ends_weigh;
    request.config.training.local_batch_size = 2 * c.num_ranks + 3;
    validate(request.config, 4 * c.num_ranks);
    request.degrees = resolve_degrees(p, 4 * c.num_ranks);
    const PricedRun twins = price_run(request);
    request.wants_spans = true;
    const PricedRun own = price_run(request);
    EXPECT_EQ(twins.step.seconds, own.step.seconds) << c.schedule;
    EXPECT_EQ(twins.step.by_category, own.step.by_category) << c.schedule;
    for (size_t r = 0; r < own.planned.ranks().size(); ++r)
      EXPECT_EQ(twins.planned.ranks()[r].peak_bytes(), own.planned.ranks()[r].peak_bytes())
          << c.schedule << " " << r;
  }
}

// Of all ranks, where plans are shared and where each rank has its own.
TEST(PricedRun, RanksThatShareAPlanCostWhatTheirOwnPlansCost) {
  struct Case {
    Degrees degrees;
    const char* sharding = "fsdp";
  };

  for (const Case& c :
       {Case{{.dp_shard = 12}}, Case{{.dp_replicate = 3, .dp_shard = 4}},
        Case{{.dp_shard = 4, .tp = 2}, "zero1"}, Case{{.dp_replicate = 4, .tp = 2}, "ddp"},
        Case{{.dp_shard = 3, .tp = 3}}, Case{{.dp_replicate = 2, .tp = 16}},
        Case{{.pp = 5, .dp_shard = 2, .cp = 2, .tp = 2}},
        Case{{.pp = 2, .dp_replicate = 2, .dp_shard = 2, .cp = 2, .tp = 4}},
        Case{{.dp_shard = 12, .tp = 2}}}) {
    PriceRequest request = request_of({"--model.flavor=debugmodel", "--training.seq_len=2048"}, 1);
    ParallelismConfig& p = request.config.parallelism;
    p.pipeline_parallel_degree = c.degrees.pp;
    p.data_parallel_replicate_degree = c.degrees.dp_replicate;
    p.data_parallel_shard_degree = c.degrees.dp_shard;
    p.context_parallel_degree = c.degrees.cp;
    p.tensor_parallel_degree = c.degrees.tp;
    p.data_parallel_type = c.sharding;
    request.config.training.local_batch_size = c.degrees.pp + 1;
    validate(request.config, c.degrees.world());
    request.degrees = resolve_degrees(p, c.degrees.world());
    request.all_ranks = true;
    const PricedRun shared = price_run(request);
    request.wants_spans = true;
    const PricedRun own = price_run(request);
    const std::string name = mesh_text(c.degrees);
    ASSERT_EQ(shared.planned.ranks().size(), own.planned.ranks().size()) << name;
    std::set<const Plan*> plans;
    for (size_t r = 0; r < own.planned.ranks().size(); ++r) {
      const PlannedRanks::Rank& a = shared.planned.ranks()[r];
      const PlannedRanks::Rank& b = own.planned.ranks()[r];
      EXPECT_EQ(a.rank, b.rank) << name;
      EXPECT_EQ(a.groups->entries, b.groups->entries) << name << " " << r;
      EXPECT_EQ(a.peak_bytes(), b.peak_bytes()) << name << " " << r;
      plans.insert(a.plan);
    }
    EXPECT_LT(plans.size(), own.planned.ranks().size()) << name;
    EXPECT_EQ(shared.step.seconds, own.step.seconds) << name;
    EXPECT_EQ(shared.step.by_category, own.step.by_category) << name;
    EXPECT_EQ(shared.step.bubble_s, own.step.bubble_s) << name;
    EXPECT_EQ(shared.step.events, own.step.events) << name;
    EXPECT_EQ(shared.planned.fullest().rank, own.planned.fullest().rank) << name;
  }
}

TEST(PricedRun, TellsHowFarItIs) {
  PriceRequest request = small_mesh();
  request.all_ranks = true;
  std::map<std::string, int64_t> told;
  request.progress = [&](std::string_view what, int64_t done, int64_t total) {
    EXPECT_GT(done, told[std::string(what)]) << what;
    EXPECT_LE(done, total) << what;
    told[std::string(what)] = done;
  };
  price_run(request);
  EXPECT_EQ(told.at("ranks planned"), 32);
  EXPECT_EQ(told.at("ranks laid out"), 32);
}

TEST(PricedRun, CategoriesSumToTheStepAndReportsRepeat) {
  const PriceRequest request = small_mesh();
  const PricedRun run = price_run(request);
  const auto& parts = run.step.by_category;
  EXPECT_NEAR(std::accumulate(parts.begin(), parts.end(), 0.0), run.step.seconds,
              1e-12 * run.step.seconds);
  for (const double part : parts) EXPECT_GE(part, 0.0);
  EXPECT_EQ(to_json(report_of(request, run, 1e12)),
            to_json(report_of(request, price_run(request), 1e12)));
}

TEST(PricedRun, MoreRateIsNeverSlower) {
  PriceRequest request = small_mesh();
  const double before = seconds_of(request);
  int faster = 0;
  for (const price::MachineKey& key : price::all_keys(request.machine)) {
    if (key.dimension != price::Dimension::kBytesPerSecond &&
        key.dimension != price::Dimension::kFlopsPerSecond)
      continue;
    PriceRequest other = request;
    price::set_number(other.machine, key.name, std::min(1.5 * key.value(other.machine), key.max));
    const double after = seconds_of(other);
    EXPECT_LE(after, before * (1.0 + 1e-12)) << key.name;
    faster += after < before ? 1 : 0;
  }
  EXPECT_GE(faster, 3) << "products, memory and NVLink bound something";
}

TEST(PricedRun, ScalingAllRatesScalesTheStep) {
  PriceRequest request = small_mesh();
  const double before = seconds_of(request);
  for (const price::MachineKey& key : price::all_keys(request.machine)) {
    using enum price::Dimension;
    const bool is_rate = key.dimension == kBytesPerSecond || key.dimension == kFlopsPerSecond;
    const bool is_time = key.dimension == kSeconds || key.dimension == kSecondsPerRootMib;
    const double factor = is_rate ? 2.0 : is_time ? 0.5 : 1.0;
    key.set(request.machine, key.at, factor * key.value(request.machine));
  }
  EXPECT_NEAR(seconds_of(request), before / 2.0, 1e-9 * before);
}

TEST(PricedRun, FewerBitsAreFaster) {
  PriceRequest request = request_of({"--model.flavor=8B", "--training.seq_len=8192"}, 1, "b200");
  const double bf16 = seconds_of(request);
  request.linear = price::Precision::kFp8;
  EXPECT_LT(seconds_of(request), 0.85 * bf16);
  request.machine.software.own_casts = 1;
  const double fp8 = seconds_of(request);
  request.linear = price::Precision::kFp4;
  EXPECT_LT(seconds_of(request), fp8);
  request.machine.software.own_casts = 0;
  EXPECT_THROW(price_run(request), Error);
}

// With the software's own casts the plan is that of bf16.
TEST(PricedRun, PlansQuantized) {
  PriceRequest request = request_of(
      {"--model.flavor=1B", "--training.seq_len=8192", "--activation_checkpoint.mode=none"}, 1,
      "h200");
  const auto peak = [&] { return price_run(request).planned.fullest().peak_bytes(); };
  const int64_t bf16 = peak();
  request.linear = price::Precision::kFp8;
  const int64_t fp8 = peak();
  EXPECT_NE(fp8, bf16);
  const double tensorwise = seconds_of(request);
  request.config.quantize.linear.float8.recipe_name = "blockwise";
  EXPECT_GT(seconds_of(request), tensorwise);
  request.config.model.converters = {"quantize.linear.float8"};
  request.config.quantize.linear.float8.recipe_name = "tensorwise";
  request.linear.reset();
  EXPECT_EQ(peak(), fp8);
  EXPECT_EQ(seconds_of(request), tensorwise);
  request.config.model.converters = {"quantize.linear.mx"};
  EXPECT_THROW(price_run(request), Error);  // its matmuls want sm_100
  request.config.model.converters = {"quantize.linear.float8"};
  request.machine.software.own_casts = 1;
  EXPECT_EQ(peak(), bf16);
  request.linear = price::Precision::kBf16;
  request.machine.software.own_casts = 0;
  EXPECT_EQ(peak(), bf16);
}

TEST(PricedRun, EmulationIsPricedInFp32) {
  PriceRequest request =
      request_of({"--model.flavor=debugmodel", "--model.converters=quantize.linear.float8",
                  "--quantize.linear.float8.emulate"},
                 1, "a100-80");
  EXPECT_EQ(report_of(request, price_run(request), 1e12).precision, price::Precision::kFp32);
  request.config.quantize.linear.float8.emulate = false;
  EXPECT_THROW(price_run(request), Error);
}

TEST(PricedRun, KnowsWhatDoesNotFit) {
  const PriceRequest small = request_of(
      {"--model.flavor=8B", "--training.seq_len=8192", "--training.local_batch_size=1"}, 8);
  EXPECT_TRUE(price_run(small).fits());
  const PriceRequest large =
      request_of({"--model.flavor=70B", "--training.seq_len=8192",
                  "--activation_checkpoint.mode=none", "--training.local_batch_size=2"},
                 8);
  const PricedRun run = price_run(large);
  EXPECT_FALSE(run.fits());
  const std::string advice = memory_advice(run, large.config, large.degrees);
  for (const char* part : {"training.local_batch_size", "activation_checkpoint.mode"})
    EXPECT_NE(advice.find(part), std::string::npos) << advice;
  EXPECT_EQ(advice.find("gather_again"), std::string::npos) << advice;
}

TEST(PricedRun, AdvisesToGatherAgain) {
  PriceRequest kept = request_of(
      {"--model.flavor=70B", "--training.seq_len=8192", "--activation_checkpoint.mode=none",
       "--training.local_batch_size=2", "--parallelism.tensor_parallel_degree=8"},
      8);
  const PricedRun run = price_run(kept);
  ASSERT_FALSE(run.fits());
  const std::string advice = memory_advice(run, kept.config, kept.degrees);
  EXPECT_NE(advice.find("gather_again = true (false)"), std::string::npos) << advice;
  // Where matmuls are recomputed, so is what they read.
  kept.config.activation_checkpoint.mode = "selective";
  kept.config.activation_checkpoint.selective_ac_option = "op";
  EXPECT_EQ(memory_advice(run, kept.config, kept.degrees).find("gather_again"), std::string::npos);
}

// The largest published plan; a release build takes less than a second.
TEST(PricedRun, Prices405BOn2304) {
  const auto begin = std::chrono::steady_clock::now();
  const PriceRequest request = request_of(
      {"--model.flavor=405B", "--training.seq_len=8192", "--training.local_batch_size=63",
       "--parallelism.pipeline_parallel_degree=9",
       "--parallelism.pipeline_parallel_schedule=Interleaved1F1B",
       "--parallelism.pipeline_parallel_layers_per_stage=2",
       "--parallelism.pipeline_parallel_first_stage_less_layers=0",
       "--parallelism.pipeline_parallel_last_stage_less_layers=0",
       "--parallelism.tensor_parallel_degree=8", "--parallelism.context_parallel_degree=2",
       "--parallelism.data_parallel_type=zero1", "--activation_checkpoint.mode=none"},
      2304);
  const PricedRun run = price_run(request);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("405B on 2304: planned and priced in %.2f s, %lld events, step %.2f s\n", seconds,
              static_cast<long long>(run.step.events), run.step.seconds);
  RecordProperty("seconds", std::to_string(seconds));
  EXPECT_EQ(run.planned.ranks().size(), 9U);
  EXPECT_EQ(run.batch.num_microbatches, 63);
  EXPECT_LT(seconds, 30.0);
}

}  // namespace
}  // namespace tokamak
