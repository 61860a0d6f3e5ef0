#include "tokamak/price/report/preset_table.h"

#include <gtest/gtest.h>

#include "tokamak/core/json.h"
#include "tokamak/run/run_of_config.h"

namespace tokamak {
namespace {

// Half a second a step on the preset's number of devices.
PresetTable table_of(const std::string& name, bool is_proxy) {
  const Preset& preset = find_preset(name);
  const Config config = load_preset(preset).config;
  return preset_table(preset,
                      {.model = spec_of(config),
                       .seq_len = config.training.seq_len,
                       .tokens_per_step = 8192.0 * 126.0,
                       .num_devices = preset.num_gpus,
                       .last_step_s = 0.5,
                       .median_step_s = 0.6,
                       .peak_flops = 989e12,
                       .is_proxy = is_proxy},
                      "measured");
}

// By the source's formula, vocabulary and peak, from the published seconds or tokens/s alone.
TEST(PresetTable, RepeatsPublishedMfus) {
  int num_stated = 0;
  for (const Preset& stated : all_presets()) {
    if (!stated.mfu || (!stated.step_s && !stated.tokens_per_s)) continue;
    const Config config = load_preset(stated).config;
    const Degrees degrees = resolve_degrees(config.parallelism, stated.num_gpus);
    const double tokens = static_cast<double>(global_batch_size(config, degrees)) *
                          static_cast<double>(config.training.seq_len);
    const double rate = stated.tokens_per_s.value_or(tokens / stated.step_s.value_or(1.0) /
                                                     static_cast<double>(stated.num_gpus));
    Preset unstated = stated;
    unstated.mfu.reset();
    const double peak = (stated.precision == "fp8" ? 1979e12 : 989e12);
    const PresetColumn column = published_column(unstated, peak);
    EXPECT_NEAR(*column.device_tokens_per_s, rate, 1e-6 * rate) << stated.name;
    EXPECT_NEAR(*column.mfu, *stated.mfu, 0.1) << stated.name;
    EXPECT_LT(*column.corrected_mfu, 100.0 * 1e12 * *column.device_tflops / peak) << stated.name;
    ++num_stated;
  }
  EXPECT_EQ(num_stated, 15) << "12 of NeMo, 3 on GB200";
}

TEST(PresetTable, HasWhatWasPublishedPricedAndMeasured) {
  const PresetTable table = table_of("nemo-405b-32-bf16", false);
  ASSERT_EQ(table.columns.size(), 3U);
  const PresetColumn& published = table.columns[0];
  EXPECT_EQ(published.last_step_s, 8.85);
  EXPECT_FALSE(published.median_step_s);
  EXPECT_NEAR(*published.tokens_per_s, 116632.0, 1.0);
  EXPECT_EQ(published.mfu, 58.63);
  EXPECT_NEAR(*published.corrected_mfu, 53.79, 0.01);
  const PresetColumn& priced = table.columns[1];
  EXPECT_NEAR(*priced.last_step_s, 8.85, 0.05 * 8.85);
  EXPECT_NEAR(*priced.mfu, 58.63 * 8.85 / *priced.last_step_s, 0.1);
  const PresetColumn& measured = table.columns[2];
  EXPECT_EQ(measured.median_step_s, 0.6);
  EXPECT_NEAR(*measured.tokens_per_s, 8192.0 * 126.0 / 0.5, 1e-3);
  EXPECT_NEAR(*measured.days, 1e12 / *measured.tokens_per_s / 86400.0, 1e-9);
  // The preset's model on its number of devices is counted as the source counts, a proxy by its
  // own.
  EXPECT_NEAR(*measured.mfu / *priced.mfu, *priced.last_step_s / 0.5, 1e-9);
  const PresetColumn own = table_of("nemo-405b-32-bf16", true).columns[2];
  EXPECT_LT(*own.mfu, *measured.mfu);
  EXPECT_EQ(own.corrected_mfu, measured.corrected_mfu);
}

TEST(PresetTable, IsTextAndJson) {
  const PresetTable table = table_of("bench-gpt2-124m-h100", true);
  const std::string text = to_text(table);
  EXPECT_NE(text.find("s/step, last step               -"), std::string::npos) << text;
  EXPECT_NE(text.find("MFU %, corrected"), std::string::npos) << text;
  EXPECT_NE(text.find("measured: another model on another machine"), std::string::npos) << text;
  const Json json = parse_json(to_json(table), "table");
  EXPECT_EQ(json.at("columns").at(2).at("step_time_s"), 0.5);
  EXPECT_TRUE(json.at("columns").at(0).at("mfu_percent").is_null());
}

}  // namespace
}  // namespace tokamak
