#include "tokamak/run/presets.h"

#include <gtest/gtest.h>

#include "tokamak/config/check.h"
#include "tokamak/config/describe.h"
#include "tokamak/core/error.h"
#include "tokamak/price/run/priced_run.h"
#include "tokamak/run/run_of_config.h"

namespace tokamak {
namespace {

TEST(Presets, AreLegalRunsOfAsManyDevicesAsTheyName) {
  ASSERT_GE(all_presets().size(), 12U + 3 + 2 + 3);
  for (const Preset& preset : all_presets()) {
    SCOPED_TRACE(preset.name);
    const LoadedConfig loaded = load_preset(preset);
    EXPECT_NO_THROW(validate(loaded.config, preset.num_gpus));
    const Degrees degrees = resolve_degrees(loaded.config.parallelism, preset.num_gpus);
    const ModelSpec spec = spec_of(loaded.config);
    const RunShape shape = shape_of(loaded.config, spec, {.degrees = degrees});
    EXPECT_GE(shape.distribute.num_microbatches, 1);
    EXPECT_FALSE(preset.title.empty());
    EXPECT_FALSE(preset.source.empty());
    EXPECT_FALSE(preset.cluster.empty());
    EXPECT_EQ(preset.precision == "fp8", !loaded.config.model.converters.empty());
  }
}

TEST(Presets, RunAsTheSourcesSay) {
  const Preset& nemo = find_preset("nemo-405b-576-bf16");
  const Config config = load_preset(nemo).config;
  const Degrees degrees = resolve_degrees(config.parallelism, nemo.num_gpus);
  EXPECT_EQ(batch_sizes(config, degrees).num_microbatches, 63);
  EXPECT_EQ(degrees.dp(), 4);
  const RunShape shape = shape_of(config, spec_of(config), {.degrees = degrees});
  EXPECT_EQ(shape.distribute.pipeline.num_stages(), 9 * 7);
  EXPECT_NE(published_text(nemo).find("17.20 s a step, MFU 55.78 %"), std::string::npos);
  const Preset& frontier = find_preset("frontier-8b-832-nodes");
  const Config wide = load_preset(frontier).config;
  EXPECT_EQ(global_batch_size(wide, resolve_degrees(wide.parallelism, 6656)) * 8192, 143130624);
}

// As the software that ran them, which rows of measurements are priced by too.
TEST(Presets, OfNemoArePricedAsTheyRan) {
  for (const char* name : {"nemo-405b-32-bf16", "nemo-405b-576-bf16", "nemo-405b-2304-fp8"}) {
    const Preset& preset = find_preset(name);
    const Config config = load_preset(preset).config;
    const PricedRun run =
        price_run({.config = config,
                   .degrees = resolve_degrees(config.parallelism, preset.num_gpus),
                   .machine = price::load_machine(preset.cluster),
                   .linear = linear_precision(config)});
    EXPECT_NEAR(run.step.seconds / preset.step_s.value(), 1.0, 0.05) << name;
  }
}

TEST(Presets, WriteFilesThatTrainLoads) {
  for (const Preset& preset : all_presets()) {
    const Config config = load_preset(preset).config;
    EXPECT_EQ(config_json(parse_toml_text(config_toml(config), preset.name).config),
              config_json(config));
  }
}

TEST(Presets, NameTheNearest) {
  try {
    find_preset("nemo-405b-575-bf16");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "--preset nemo-405b-575-bf16: no such preset; the nearest is nemo-405b-576-bf16; "
                 "`tokamak price --preset list` prints all");
  }
}

}  // namespace
}  // namespace tokamak
