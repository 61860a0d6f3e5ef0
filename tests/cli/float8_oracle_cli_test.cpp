// Training in 8-bit floats against torchao's numbers, through the ordinary command.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/training_run.h"

namespace tokamak {
namespace {

struct Recipe {
  const char* oracle = "";
  Words words;
};

class Float8OracleCli : public ::testing::TestWithParam<Recipe> {
 protected:
  void run(const Words& more) {
    FileWriter(scratch.path() / "stream.u32").write(oracle.at("tokens"));
    Words words{"--checkpoint.enable",
                "--checkpoint.initial_load_path=" + folder.string(),
                "--checkpoint.initial_load_in_hf",
                "--checkpoint.last_save_in_hf",
                "--training.dataset=tokens",
                "--training.dataset_path=" + (scratch.path() / "stream.u32").string(),
                fmt::format("--training.steps={}", facts["steps"].size()),
                "--optimizer.lr=1e-3",
                "--training.threads=2",
                fmt::format("--training.local_batch_size={}", facts["batch"].get<int64_t>()),
                fmt::format("--training.seq_len={}", facts["seq"].get<int64_t>())};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = run_program(train_words(GetParam().oracle, dump, words), scratch.path());
    ASSERT_EQ(result.exit_code, 0) << result.err;
    out = result.out;
    lines = read_json_lines(dump / "metrics.jsonl");
    ASSERT_EQ(lines.size(), facts["steps"].size());
  }

  Words quantized(const char* compute) const {
    Words words{"--model.converters=quantize.linear.float8",
                fmt::format("--training.mixed_precision_param={}", compute)};
    words.insert(words.end(), GetParam().words.begin(), GetParam().words.end());
    return words;
  }

  const ScratchFolder scratch;
  const std::filesystem::path folder = oracle_folder(GetParam().oracle);
  const std::filesystem::path dump = scratch.path() / "out";
  const Json facts = parse_json(read_file(folder / "oracle.json"), "oracle.json");
  const std::map<std::string, std::string> oracle = read_tensors(folder);
  std::string out;
  std::vector<Json> lines;
};

TEST_P(Float8OracleCli, StepsEqualTorchao) {
  ASSERT_NO_FATAL_FAILURE(run(quantized("float32")));
  const bool has_head = facts["fp8"].value("lm_head_in_fp8", false);
  EXPECT_NE(out.find(has_head ? "matmuls, head in float8;" : "matmuls, head in float32;"),
            std::string::npos)
      << out;
  for (size_t i = 0; i < lines.size(); ++i) {
    const Json& want = facts["steps"][i];
    EXPECT_NEAR(lines[i]["loss"].get<double>(), want["loss"].get<double>(), 2e-5) << i;
    const double norm = want["grad_norm"].get<double>();
    EXPECT_NEAR(lines[i]["grad_norm"].get<double>(), norm, 1e-4 * norm) << i;
  }
  const auto got = read_tensors(dump / fmt::format("checkpoint/step-{}", lines.size()));
  for (const auto& [name, bytes] : oracle) {
    const std::string prefix = "param.final.";
    if (!name.starts_with(prefix)) continue;
    const std::string inner = name.substr(prefix.size());
    ASSERT_EQ(got.count(inner), 1U) << inner;
    EXPECT_LT(relative_error(to_floats(got.at(inner)), to_floats(bytes)), 1e-3) << inner;
  }
}

// The bounds above would miss a run that is not quantized at all by little.
TEST_P(Float8OracleCli, StepsDifferFromThoseWithoutFloat8) {
  ASSERT_NO_FATAL_FAILURE(run({"--training.mixed_precision_param=float32"}));
  double most = 0.0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const double plain = facts["steps_without_fp8"][i]["loss"].get<double>();
    EXPECT_NEAR(lines[i]["loss"].get<double>(), plain, 2e-5) << i;
    most = std::max(most, std::abs(plain - facts["steps"][i]["loss"].get<double>()));
  }
  EXPECT_GT(most, 1e-4);
}

TEST_P(Float8OracleCli, StepsInBf16StayNear) {
  ASSERT_NO_FATAL_FAILURE(run(quantized("bfloat16")));
  for (size_t i = 0; i < lines.size(); ++i) {
    const double loss = facts["steps"][i]["loss"].get<double>();
    EXPECT_NEAR(lines[i]["loss"].get<double>(), loss, 0.01 * loss) << i;
    const double norm = facts["steps"][i]["grad_norm"].get<double>();
    EXPECT_NEAR(lines[i]["grad_norm"].get<double>(), norm, 0.1 * norm) << i;
  }
}

const std::string kKey = "--quantize.linear.float8.";
const std::string kBlocks = kKey + "filter_fqns=output";

INSTANTIATE_TEST_SUITE_P(
    Torchao, Float8OracleCli,
    ::testing::Values(
        Recipe{.oracle = "llama_float8_tensorwise",
               .words = {kBlocks, kKey + "enable_fsdp_float8_all_gather"}},
        Recipe{.oracle = "llama_float8_tensorwise_head",
               .words = {kKey + "enable_fsdp_float8_all_gather"}},
        Recipe{.oracle = "llama_float8_tensorwise_pow2",
               .words = {kBlocks, kKey + "round_scales_to_power_of_2=always"}},
        Recipe{.oracle = "llama_float8_tensorwise_module",
               .words = {kKey + "filter_fqns=lm_head", kKey + "enable_fsdp_float8_all_gather",
                         kKey + "scales_per=module"}},
        Recipe{.oracle = "llama_float8_rowwise_module",
               .words = {kBlocks, kKey + "recipe_name=rowwise", kKey + "scales_per=module"}},
        Recipe{.oracle = "llama_float8_delayed",
               .words = {kBlocks, kKey + "recipe_name=delayed", kKey + "amax_history_len=4"}},
        Recipe{.oracle = "llama_float8_rowwise", .words = {kBlocks, kKey + "recipe_name=rowwise"}},
        Recipe{.oracle = "llama_float8_rowwise_with_gw_hp",
               .words = {kBlocks, kKey + "recipe_name=rowwise_with_gw_hp"}},
        Recipe{.oracle = "llama_float8_blockwise",
               .words = {kKey + "recipe_name=blockwise", kKey + "round_scales_to_power_of_2=always",
                         kKey + "filter_fqns=attention.wk,v_proj"}}),
    [](const auto& of) { return std::string(of.param.oracle).substr(13); });

}  // namespace
}  // namespace tokamak
