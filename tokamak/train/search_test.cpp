#include "tokamak/train/search.h"

#include <gtest/gtest.h>

#include "tokamak/config/check.h"
#include "tokamak/config/describe.h"
#include "tokamak/config/load.h"
#include "tokamak/core/error.h"
#include "tokamak/core/json.h"
#include "tokamak/train/options.h"

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

TEST(Search, SaysTheSameAsJson) {
  const SearchResult& result = small_result();
  const Json json = parse_json(search_json(small_search(), result), "search");
  EXPECT_EQ(json.at("gpus"), 8);
  EXPECT_EQ(json.at("points"), result.num_points);
  EXPECT_EQ(json.at("priced"), result.num_priced);
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
  request = small_search();
  price::set_number(request.machine, "device.memory_bytes", 2e9);
  EXPECT_NE(error_of(request).find("wanted more --gpus or a smaller model"), std::string::npos)
      << error_of(request);
  request = small_search();
  request.precisions.push_back(price::Precision::kFp8);
  request.machine = price::load_machine("a100-80");
  EXPECT_NE(error_of(request).find("has no rate of products in fp8"), std::string::npos)
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
  EXPECT_EQ(ends.num_points, endless.num_points);
  ASSERT_EQ(ends.best.size(), endless.best.size());
  for (size_t i = 0; i < ends.best.size(); ++i)
    EXPECT_EQ(ends.best[i].step.seconds, endless.best[i].step.seconds) << i;
}

}  // namespace
}  // namespace tokamak
