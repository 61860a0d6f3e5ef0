// A run has one price, whether a preset or a row of measurements names it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/config/check.h"
#include "tokamak/core/error.h"
#include "tokamak/core/json.h"
#include "tokamak/price/run/priced_run.h"
#include "tokamak/run/presets.h"

#include "rows/row_price.h"

namespace tokamak {
namespace {

const std::string kShortHeader =
    "source,gpu,n_gpus,model,n_layers,hidden,ffn,heads,kv_heads,vocab,seq,gbs,mbs,tp,pp,vp,cp,dp,"
    "zero_stage_or_fsdp,precision,recompute,step_time_s,software\n";

PricedRow priced_row(const std::string& line) {
  const auto rows = price_rows(parse_measured_rows(kShortHeader + line, "rows.csv"), {});
  EXPECT_EQ(rows.size(), 1U);
  return rows.at(0);
}

PricedRun priced_preset(const std::string& name, const std::string& cluster = "") {
  const Preset& preset = find_preset(name);
  const Config config = load_preset(preset).config;
  const price::Machine machine = price::load_machine(cluster.empty() ? preset.cluster : cluster);
  return price_run({.config = config,
                    .degrees = resolve_degrees(config.parallelism, preset.num_gpus),
                    .machine = price::with_equal_domains(machine, preset.num_gpus),
                    .linear = linear_precision(config)});
}

TEST(OnePrice, PresetsCostWhatRowsOfTheSameRunsCost) {
  const std::string gb200 = ",Llama3-8B,32,4096,14336,32,8,128256,8192,";
  const std::string fsdp = ",FSDP2,bf16,selective-op,2,\n";
  for (const auto& [preset, row] :
       {std::pair<std::string, std::string>{"gb200-8b-3-nodes", "12" + gb200 + "60,5,1,1,,1,12"},
        {"gb200-8b-9-nodes", "36" + gb200 + "180,5,1,1,,1,36"},
        {"gb200-8b-17-nodes", "68" + gb200 + "340,5,1,1,,1,68"}}) {
    SCOPED_TRACE(preset);
    const PricedRow priced = priced_row(fmt::format("torchtitan on GB200,GB200,{}{}", row, fsdp));
    ASSERT_EQ(priced.skipped, "");
    EXPECT_DOUBLE_EQ(priced_preset(preset).step.seconds, priced.step.seconds);
  }
}

// These presets gather inputs of matmuls again, as Megatron does, since their memory is priced too;
// rows do not.
TEST(OnePrice, PresetsOfNemoAreNearRows) {
  for (const auto& [preset, row] :
       {std::pair<std::string, std::string>{
            "nemo-405b-32-bf16",
            "32,M,7,16384,53248,128,16,51200,8192,126,1,8,1,,2,2,dist-opt,bf16"},
        {"nemo-405b-576-bf16",
         "576,M,126,16384,53248,128,16,51200,8192,252,1,8,9,7,2,4,dist-opt,bf16"},
        {"nemo-405b-576-fp8",
         "576,M,126,16384,53248,128,16,51200,8192,252,1,8,9,7,2,4,dist-opt,fp8"}}) {
    SCOPED_TRACE(preset);
    const PricedRow priced = priced_row("NVIDIA,H100," + row + ",none,9,\n");
    ASSERT_EQ(priced.skipped, "");
    EXPECT_NEAR(priced_preset(preset).step.seconds / priced.step.seconds, 1.002, 0.002);
  }
}

TEST(OnePrice, SoftwareMayBeNamed) {
  const std::string row =
      "a trainer,GB200,12,Llama3-8B,32,4096,14336,32,8,128256,8192,60,5,1,1,,1,12,FSDP2,bf16,"
      "selective-op,2,";
  EXPECT_EQ(priced_row(row + "\n").run.software, "torchtitan") << "none named";
  const PricedRow nemo = priced_row(row + "NeMo\n");
  EXPECT_EQ(nemo.run.machine, "gb200+nemo");
  EXPECT_LT(nemo.step.seconds, priced_row(row + "torchtitan\n").step.seconds);
  EXPECT_EQ(priced_row(row + "nemoo\n").skipped.rfind("software = nemoo: wanted vtrain, ", 0), 0U);
  EXPECT_NEAR(priced_preset("gb200-8b-3-nodes", "gb200+torchtitan").step.seconds /
                  priced_row(row + "torchtitan\n").step.seconds,
              1.0, 1e-3);
}

TEST(OnePrice, NamesOfModelsFillSizesThatARowLeavesBlank) {
  const PricedRow whole = priced_row(
      "a trainer,H100,8,Llama3-8B,32,4096,14336,32,8,128256,8192,16,2,1,1,,1,8,FSDP,bf16,none,3,"
      "\n");
  EXPECT_FALSE(whole.run.sizes_by_name);
  EXPECT_TRUE(whole.run.calibrates);
  const PricedRow named =
      priced_row("a trainer,H100,8,Llama3-8B,,,,,,,8192,16,2,1,1,,1,8,FSDP,bf16,none,3,\n");
  ASSERT_EQ(named.skipped, "");
  EXPECT_TRUE(named.run.sizes_by_name);
  EXPECT_FALSE(named.run.calibrates) << "no constant is fitted on it";
  EXPECT_EQ(named.step.seconds, whole.step.seconds);
  // A row's own sizes stand.
  const PricedRow cut =
      priced_row("a trainer,H100,8,Llama3-8B,16,,,,,,8192,16,2,1,1,,1,8,FSDP,bf16,none,3,\n");
  EXPECT_EQ(cut.run.num_layers, 16);
  EXPECT_EQ(cut.run.ffn, 14336);
  const auto sizes = [](const std::string& model) {
    const MeasuredRun run = parse_measured_rows(kShortHeader + "a trainer,H100,8," + model +
                                                    ",,,,,,,1024,16,2,1,1,,1,8,FSDP,bf16,none,3,\n",
                                                "rows.csv")[0];
    return std::tuple(run.num_layers, run.hidden, run.vocab, run.tied);
  };
  EXPECT_EQ(sizes("Qwen2.5-0.5B"), std::tuple(24, 896, 151936, true));
  EXPECT_EQ(sizes("GPT2-XL-1.5B"), std::tuple(48, 1600, 50257, true));
  EXPECT_EQ(sizes("Llama3.1-405B"), std::tuple(126, 16384, 128256, false));
  EXPECT_EQ(sizes("Llama2 70B"), std::tuple(80, 8192, 32000, false));
  EXPECT_EQ(std::get<0>(sizes("Llama3-9B")), 0) << "no such model";
}

TEST(OnePrice, RowsTellMemoryAndWhetherTheyFit) {
  const auto memory = [](const std::string& gpus, const std::string& dp) {
    const PricedRow row =
        priced_row("a trainer,H100," + gpus + ",Llama3-8B,,,,,,,8192,16,2,1,1,,1," + dp +
                   ",FSDP,bf16,full,3,\n");
    EXPECT_EQ(row.skipped, "");
    return parse_json(to_json(row), "row").at("memory");
  };
  const Json fits = memory("8", "8");
  EXPECT_TRUE(fits.at("fits"));
  EXPECT_LT(fits.at("peak_bytes"), fits.at("limit_bytes"));
  const Json large = memory("1", "1");
  EXPECT_FALSE(large.at("fits"));
  EXPECT_GT(large.at("peak_bytes").get<double>(), 16.0 * 8.03e9) << "masters, moments, gradients";
  EXPECT_EQ(large.at("limit_bytes"), fits.at("limit_bytes"));
}

}  // namespace
}  // namespace tokamak
