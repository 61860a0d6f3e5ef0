#include "tokamak/search/search.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "tokamak/config/check.h"
#include "tokamak/config/describe.h"
#include "tokamak/config/load.h"
#include "tokamak/core/error.h"
#include "tokamak/core/json.h"
#include "tokamak/run/run_of_config.h"

namespace tokamak {
namespace {

Config small_run(int64_t global_batch) {
  Config config;
  config.model.flavor = "1B";
  config.training.dataset = "synthetic";
  config.training.seq_len = 4096;
  config.training.global_batch_size = global_batch;
  return config;
}

SearchRequest small_search() {
  return {.config = small_run(32),
          .num_gpus = 8,
          .machine = price::load_machine("h100"),
          .num_best = 4};
}

const SearchResult& small_result() {
  static const SearchResult kResult = search_plans(small_search());
  return kResult;
}

TEST(Search, PutsTheFastestFirstAndSaysWhy) {
  const SearchRequest request = small_search();
  const SearchResult& result = small_result();
  ASSERT_EQ(result.best.size(), 4U);
  for (size_t i = 0; i < result.best.size(); ++i) {
    const FoundPlan& f = result.best[i];
    EXPECT_EQ(f.point.degrees.world(), 8);
    EXPECT_LE(static_cast<double>(f.peak_bytes), result.memory_limit_bytes);
    EXPECT_GE(f.step.seconds, result.best[i > 0 ? i - 1 : 0].step.seconds);
    // The price is that of the plan of the configuration that is written.
    const PricedRun again =
        price_run({.config = f.config, .degrees = f.point.degrees, .machine = request.machine});
    EXPECT_EQ(again.step.seconds, f.step.seconds);
  }
  EXPECT_NE(search_text(request, result).find("% faster than the next: "), std::string::npos);
}

// Of all plans that there are, where memory is plenty and where it is not.
// Estimates order the plans, so a plan that is almost as fast may be found in place of the fastest.
TEST(Search, FindsAPlanWithinOnePercentOfTheFastest) {
  SearchRequest request = small_search();
  request.num_gpus = 4;
  request.config.training.global_batch_size = 4;
  std::vector<std::pair<double, int64_t>> all;  // seconds, bytes
  for (const SearchPoint& point :
       search_points(spec_of(request.config), {.num_gpus = 4,
                                              .global_batch = 4,
                                              .seq_len = request.config.training.seq_len,
                                              .largest_tp = 4})) {
    try {
      const PricedRun run = price_run({.config = config_of(point, request.config, 4),
                                       .degrees = point.degrees,
                                       .machine = request.machine});
      all.emplace_back(run.step.seconds, run.planned.fullest().peak_bytes());
    } catch (const Error&) {
      // a stage that cannot be planned
    }
  }
  std::sort(all.begin(), all.end());
  for (const double memory : {80e9, 16e9, 11e9}) {
    price::set_number(request.machine, "device.memory_bytes", memory);
    const double limit = memory_limit(request.machine);
    const auto fits = [&](const auto& plan) { return static_cast<double>(plan.second) <= limit; };
    EXPECT_GT(std::count_if(all.begin(), all.end(), fits), 20) << memory;
    const auto best = std::find_if(all.begin(), all.end(), fits);
    ASSERT_NE(best, all.end()) << memory;
    EXPECT_LE(search_plans(request).best[0].step.seconds, 1.01 * best->first)
        << memory << ", the best of " << all.size() << " is the " << best - all.begin();
  }
}

TEST(Search, SaysTheSameAsJson) {
  const SearchResult& result = small_result();
  const Json json = parse_json(search_json(small_search(), result), "search");
  EXPECT_EQ(json.at("gpus"), 8);
  EXPECT_EQ(json.at("points"), result.points.size());
  const Json& best = json.at("best");
  ASSERT_EQ(best.size(), result.best.size());
  for (size_t i = 0; i < best.size(); ++i) {
    const FoundPlan& f = result.best[i];
    EXPECT_EQ(best[i].at("mesh"), mesh_text(f.point.degrees));
    EXPECT_EQ(best[i].at("degrees").at("dp_shard"), f.point.degrees.dp_shard);
    EXPECT_EQ(best[i].at("step_time_s"), f.step.seconds);
    EXPECT_EQ(best[i].at("memory").at("peak_bytes"), f.peak_bytes);
    double sum = 0.0;
    for (const auto& [name, seconds] : best[i].at("time_s").items()) sum += seconds.get<double>();
    EXPECT_NEAR(sum, f.step.seconds, 1e-9 * sum);
    const Json& flops = best[i].at("flops");
    ASSERT_EQ(flops.size(), 1U);
    EXPECT_DOUBLE_EQ(flops[0].at("mfu").get<double>() * best[i].at("peak_flops").get<double>(),
                     flops[0].at("flops_per_token").get<double>() *
                         best[i].at("tokens_per_s_per_gpu").get<double>());
    if (i + 1 == best.size()) break;
    EXPECT_EQ(best[i].at("reason"), reason_text(f, result.best[i + 1]));
  }
  EXPECT_FALSE(best.back().contains("reason"));
}

TEST(Search, WritesAFileThatTrainLoads) {
  for (const FoundPlan& f : small_result().best) {
    const Config loaded = parse_toml_text(config_toml(f.config), "best.toml").config;
    EXPECT_EQ(config_json(loaded), config_json(f.config));
    EXPECT_NO_THROW(validate(loaded, 8));
    EXPECT_EQ(global_batch_size(loaded, f.point.degrees), 32);
  }
}

TEST(Search, SaysWhichKeysItChooses) {
  Config base = small_run(32);
  base.activation_checkpoint = {.mode = "selective", .selective_ac_option = "3"};
  ParallelismConfig& p = base.parallelism;
  p.pipeline_parallel_degree = p.data_parallel_replicate_degree = p.data_parallel_shard_degree = 3;
  p.context_parallel_degree = p.tensor_parallel_degree = 3;
  p.context_parallel_rotate_method = "alltoall";
  p.pipeline_parallel_receives_ahead = 2;
  p.data_parallel_type = "ddp";
  p.module_fqns_per_model_part = {{"tok_embeddings"}};
  p.pipeline_parallel_split_points = {"layers.1"};
  p.pipeline_parallel_schedule_csv = "a.csv";
  p.pipeline_parallel_schedule = "GPipe";
  p.pipeline_parallel_layers_per_stage = 7;
  p.pipeline_parallel_first_stage_less_layers = p.pipeline_parallel_last_stage_less_layers = 5;
  p.pipeline_parallel_microbatch_size = 3;
  base.training.grad_store = "full";
  base.training.local_batch_size = 3;
  const auto before = key_values(base);
  std::set<std::string> changed;
  for (const SearchPoint& point :
       search_points(spec_of(base), {.num_gpus = 8, .global_batch = 32, .seq_len = 4096})) {
    const auto after = key_values(config_of(point, base, 32));
    for (size_t i = 0; i < before.size(); ++i) {
      if (after[i] != before[i]) changed.insert(before[i].first);
    }
  }
  EXPECT_EQ(changed, std::set<std::string>(chosen_keys().begin(), chosen_keys().end()));
}

// What cuDNN takes for backwards that are the same each time grows with the square of the sequence.
TEST(Search, FindsWhatFitsOfDeterministicRuns) {
  SearchRequest request = small_search();
  request.config.model.flavor = "8B";
  request.config.training.seq_len = 65536;
  request.config.training.global_batch_size = 8;
  request.config.debug.deterministic = true;
  EXPECT_EQ(std::ssize(search_plans(request).best), request.num_best);
}

TEST(Search, IsTheSameForAnyNumberOfThreads) {
  SearchRequest request = small_search();
  request.num_threads = 1;
  const SearchResult again = search_plans(request);
  EXPECT_EQ(search_text(request, again), search_text(request, small_result()));
  EXPECT_EQ(search_json(request, again), search_json(request, small_result()));
}

TEST(Search, TriesFp8WhereAsked) {
  SearchRequest request = small_search();
  request.precisions = {price::Precision::kBf16, price::Precision::kFp8};
  const SearchResult result = search_plans(request);
  ASSERT_FALSE(result.best.empty());
  EXPECT_EQ(result.best[0].point.linear, price::Precision::kFp8);
  EXPECT_EQ(result.best[0].config.model.converters, Strings{"quantize.linear.float8"});
}

// One sequence leaves no other way than to cut it or the weights.
TEST(Search, TriesKeysThatBuyTimeForMemory) {
  SearchRequest request = small_search();
  request.config = small_run(1);
  request.config.activation_checkpoint.gather_again = true;
  FoundPlan best = search_plans(request).best.at(0);
  EXPECT_GT(best.point.degrees.tp, 1);
  EXPECT_EQ(best.point.gather_again, GatherAgain::kNone);
  EXPECT_FALSE(best.config.activation_checkpoint.gather_again);
  // A plan that does not fit is left out.
  price::set_number(
      request.machine, "device.memory_bytes",
      static_cast<double>(best.peak_bytes) + request.machine.device.memory.reserve_bytes - 1e6);
  best = search_plans(request).best.at(0);
  EXPECT_NE(best.point.gather_again, GatherAgain::kNone);
}

// 16 A100 of 40 GB hold an 8B model only where gradients of several microbatches are shared.
TEST(Search, LooksThroughShardings) {
  SearchRequest request{.config = small_run(64),
                        .num_gpus = 16,
                        .machine = price::load_machine("a100-40"),
                        .num_best = 1};
  request.config.model.flavor = "8B";
  request.config.training.seq_len = 8192;
  const FoundPlan best = search_plans(request).best.at(0);
  EXPECT_EQ(best.point.sharding, "fsdp");
  EXPECT_EQ(best.config.training.grad_store, "sharded");
  Config full = best.config;
  full.training.grad_store = "full";
  EXPECT_FALSE(
      price_run({.config = full, .degrees = best.point.degrees, .machine = request.machine})
          .fits());
}

std::string error_of(const SearchRequest& request) {
  try {
    search_plans(request);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Masters and moments in bf16 fit where those in fp32 do not.
TEST(Search, CountsWeightsInTheTypesOfTheRun) {
  SearchRequest request = small_search();
  request.num_gpus = 1;
  request.config = small_run(1);
  request.config.model.flavor = "8B";
  request.config.training.seq_len = 2048;
  EXPECT_THROW(search_plans(request), Error);
  request.config.training.dtype = "bfloat16";
  const SearchResult result = search_plans(request);
  ASSERT_FALSE(result.best.empty());
  EXPECT_LE(static_cast<double>(result.best[0].peak_bytes), result.memory_limit_bytes);
}

TEST(Search, SaysWhatIsWrong) {
  SearchRequest request = small_search();
  request.config.training.global_batch_size = -1;
  EXPECT_EQ(error_of(request),
            "--search: training.global_batch_size = -1: wanted the batch that all plans share");
  // Weights alone do not fit, or they and what layers save do not.
  for (const double memory : {2e9, 26e9}) {
    request = small_search();
    if (memory > 2e9) {
      request.num_gpus = 1;
      request.config.training.seq_len = 131072;
      request.config.training.global_batch_size = 1;
    }
    price::set_number(request.machine, "device.memory_bytes", memory);
    const std::string error = error_of(request);
    EXPECT_NE(error.find("wanted more --gpus or a smaller model"), std::string::npos) << error;
    const size_t at = error.find("GiB of a device, which has ");
    ASSERT_NE(at, std::string::npos) << error;
    const size_t wanted = error.rfind(' ', at - 2);
    EXPECT_GT(std::stod(error.substr(wanted)), std::stod(error.substr(at + 27))) << error;
  }
  // Weights fit, and what items hold does not.
  request = small_search();
  price::set_number(request.machine, "device.memory_bytes", 4.5e9);
  EXPECT_NE(error_of(request).find("the smallest of"), std::string::npos) << error_of(request);
  request = small_search();
  request.precisions.push_back(price::Precision::kFp8);
  request.machine = price::load_machine("a100-80");
  EXPECT_NE(error_of(request).find("has no rate of matmuls in fp8"), std::string::npos)
      << error_of(request);
  request = small_search();
  request.machine = price::load_machine("h100-sxm");
  EXPECT_NE(error_of(request).find("h100-sxm has no levels: a machine of one device"),
            std::string::npos)
      << error_of(request);
}

// Meshes over all devices of a fabric have no room for the second stage of their probes.
TEST(Search, FindsTheSamePlansWhereTheFabricEnds) {
  SearchRequest request = small_search();
  request.machine = price::load_machine("h100-sxm+hgx-h100");
  price::set_number(request.machine, "nvlink.num_devices", 0.0);
  const SearchResult endless = search_plans(request);
  price::set_number(request.machine, "nvlink.num_devices", 8.0);
  const SearchResult ends = search_plans(request);
  EXPECT_EQ(ends.points.size(), endless.points.size());
  ASSERT_EQ(ends.best.size(), endless.best.size());
  for (size_t i = 0; i < ends.best.size(); ++i)
    EXPECT_EQ(ends.best[i].step.seconds, endless.best[i].step.seconds) << i;
}

}  // namespace
}  // namespace tokamak
