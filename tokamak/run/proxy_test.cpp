#include "tokamak/run/proxy.h"

#include <memory>
#include <set>

#include <gtest/gtest.h>

#include "tokamak/config/describe.h"
#include "tokamak/core/error.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/run/plan_proof.h"
#include "tokamak/run/planned_run.h"
#include "tokamak/run/presets.h"
#include "tokamak/run/run_of_config.h"

namespace tokamak {
namespace {

struct Whole {
  Config config;
  Degrees degrees;
};

Whole whole_of(const Preset& preset) {
  Config config = load_preset(preset).config;
  const Degrees degrees = resolve_degrees(config.parallelism, preset.num_gpus);
  return {.config = std::move(config), .degrees = degrees};
}

constexpr int64_t Degrees::*kAxes[] = {&Degrees::pp, &Degrees::dp_replicate, &Degrees::dp_shard,
                                       &Degrees::cp, &Degrees::tp};

// Throws Bug unless every rank's plan is sound and all ranks' collectives meet.
void check_all_ranks(const Config& config, const Degrees& degrees) {
  const auto backend = cpu::make_backend({.threads = 1});
  const ModelSpec spec = spec_of(config);
  std::vector<std::unique_ptr<PlannedRun>> runs;
  std::vector<const Plan*> plans;
  for (int rank = 0; rank < degrees.world(); ++rank) {
    const RunShape shape = shape_of(config, spec, {.degrees = degrees, .rank = rank});
    runs.push_back(std::make_unique<PlannedRun>(spec, shape, backend->target()));
    prove_plans(*runs.back());
    plans.push_back(&runs.back()->plan());
  }
  check_ranks(runs[0]->mesh(), plans,
              static_cast<int>(batch_sizes(config, degrees).num_microbatches));
}

TEST(Proxy, OfEveryPresetIsASoundPlanOnItsRanks) {
  std::set<std::string> checked;  // runs that differ in size alone have the same proxy
  for (const Preset& preset : all_presets()) {
    SCOPED_TRACE(preset.name);
    const Whole whole = whole_of(preset);
    const Proxy proxy = scale_down(whole.config, whole.degrees, {});
    if (!checked.insert(config_toml(proxy.config)).second) continue;
    EXPECT_LE(proxy.degrees.world(), 16);
    EXPECT_LT(count_parameters(spec_of(proxy.config)).total, 50'000'000);
    check_all_ranks(proxy.config, proxy.degrees);
  }
}

TEST(Proxy, KeepsWhatMakesItTheRun) {
  for (const Preset& preset : all_presets()) {
    SCOPED_TRACE(preset.name);
    const Whole whole = whole_of(preset);
    const Proxy proxy = scale_down(whole.config, whole.degrees, {});
    for (const auto axis : kAxes) EXPECT_EQ(proxy.degrees.*axis > 1, whole.degrees.*axis > 1);
    const ModelSpec a = spec_of(whole.config);
    const ModelSpec b = spec_of(proxy.config);
    EXPECT_EQ(b.num_heads / b.num_kv_heads, a.num_heads / a.num_kv_heads);
    EXPECT_EQ(b.dim == b.num_heads * b.head_dim, a.dim == a.num_heads * a.head_dim);
    EXPECT_NEAR(static_cast<double>(b.mlp_dim) / static_cast<double>(b.dim),
                static_cast<double>(a.mlp_dim) / static_cast<double>(a.dim), 0.3);
    const RunShape from = shape_of(whole.config, a, {.degrees = whole.degrees});
    const RunShape to = shape_of(proxy.config, b, {.degrees = proxy.degrees});
    EXPECT_EQ(to.distribute.sharding, from.distribute.sharding);
    EXPECT_EQ(to.training.compute, from.training.compute);
    EXPECT_EQ(to.distribute.low_precision.recipe(), from.distribute.low_precision.recipe());
    EXPECT_EQ(proxy.config.activation_checkpoint.mode, whole.config.activation_checkpoint.mode);
    EXPECT_EQ(proxy.config.parallelism.pipeline_parallel_schedule,
              whole.config.parallelism.pipeline_parallel_schedule);
    if (whole.degrees.pp == 1) continue;
    EXPECT_EQ(to.distribute.pipeline.num_stages() / proxy.degrees.pp,
              from.distribute.pipeline.num_stages() / whole.degrees.pp);
    EXPECT_EQ(b.num_layers / to.distribute.pipeline.num_stages(),
              a.num_layers / from.distribute.pipeline.num_stages());
  }
}

TEST(Proxy, OfNemosRunOn576Devices) {
  const Whole whole = whole_of(find_preset("nemo-405b-576-bf16"));
  const Proxy proxy = scale_down(whole.config, whole.degrees, {});
  EXPECT_EQ(mesh_text(proxy.degrees), "pp 2 x dp_shard 2 x cp 2 x tp 2");
  const ModelSpec spec = spec_of(proxy.config);
  EXPECT_EQ(spec.num_layers, 2 * 7 * 2);
  EXPECT_EQ(spec.num_heads, 16);
  EXPECT_EQ(spec.mlp_dim, 416);
  EXPECT_EQ(batch_sizes(proxy.config, proxy.degrees).num_microbatches, 7 * 2);
  EXPECT_EQ(proxy.config.training.steps, 50);
  const std::string text = proxy_text(proxy, "nemo-405b-576-bf16");
  EXPECT_NE(text.find("\nranks                            576            16\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("kept: Interleaved1F1B, zero1, recompute none"), std::string::npos) << text;
}

TEST(Proxy, GivesUpAxesWhereRanksAreFew) {
  const Whole whole = whole_of(find_preset("nemo-405b-576-bf16"));

  const struct {
    int64_t ranks;
    const char* mesh;
  } cases[] = {{1, "one rank"},
               {2, "tp 2"},
               {4, "pp 2 x tp 2"},
               {15, "pp 2 x cp 2 x tp 2"},
               {64, "pp 2 x dp_shard 2 x cp 2 x tp 2"}};

  for (const auto& c : cases) {
    const Proxy proxy = scale_down(whole.config, whole.degrees, {.num_ranks = c.ranks});
    EXPECT_EQ(mesh_text(proxy.degrees), c.mesh);
  }
  check_all_ranks(scale_down(whole.config, whole.degrees, {.num_ranks = 1}).config, {});
}

TEST(Proxy, GrowsWithGpus) {
  constexpr int64_t kMemory = int64_t{80} << 30;
  const Whole whole = whole_of(find_preset("gb200-8b-18-nodes"));
  const Proxy eight = scale_down(whole.config, whole.degrees, gpu_proxy_limits(8, kMemory));
  EXPECT_EQ(mesh_text(eight.degrees), "dp_shard 8");
  const ModelSpec spec = spec_of(eight.config);
  EXPECT_EQ(spec.dim, 2048);
  EXPECT_EQ(spec.head_dim, 128);
  for (const Preset& preset : all_presets()) {
    const Whole any = whole_of(preset);
    const Proxy alone = scale_down(any.config, any.degrees, gpu_proxy_limits(1, kMemory));
    EXPECT_EQ(alone.degrees.world(), 1) << preset.name;
    EXPECT_LT(count_parameters(spec_of(alone.config)).total, 3'000'000'000) << preset.name;
  }
}

TEST(Proxy, RefusesListsOfTheWholeRunsLayers) {
  Whole whole = whole_of(find_preset("nemo-405b-576-bf16"));
  whole.config.parallelism.pipeline_parallel_split_points = {"layers.3"};
  try {
    scale_down(whole.config, whole.degrees, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "--proxy: parallelism.pipeline_parallel_split_points lists layers or "
                 "microbatches of the whole run, which a proxy has not; leave it out");
  }
}

TEST(Proxy, IsAFileThatTrainLoads) {
  const Whole whole = whole_of(find_preset("frontier-8b-832-nodes"));
  const Config config = scale_down(whole.config, whole.degrees, {}).config;
  EXPECT_EQ(config_json(parse_toml_text(config_toml(config), "proxy.toml").config),
            config_json(config));
}

}  // namespace
}  // namespace tokamak
