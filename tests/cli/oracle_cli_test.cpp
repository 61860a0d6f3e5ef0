// Against PyTorch through the ordinary command: the oracle's tokens as a stream, its weights as the
// start, metrics.jsonl and the exported Hugging Face folder as the result.
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/oracle_export.h"
#include "tests/fixtures/oracle_names.h"
#include "tests/fixtures/training_run.h"

namespace tokamak {
namespace {

// Ten steps of an oracle's model, as `train` runs them.
class OracleCli : public ::testing::TestWithParam<const char*> {
 protected:
  void run(const char* compute_dtype) {
    FileWriter(scratch.path() / "stream.u32").write(oracle.at("tokens"));
    const Words words =
        train_words(GetParam(), dump,
                    {"--checkpoint.enable", "--checkpoint.initial_load_path=" + folder.string(),
                     "--checkpoint.initial_load_in_hf", "--checkpoint.last_save_in_hf",
                     "--training.dataset=tokens",
                     "--training.dataset_path=" + (scratch.path() / "stream.u32").string(),
                     "--training.steps=10", "--optimizer.lr=1e-3", "--training.threads=2",
                     fmt::format("--training.mixed_precision_param={}", compute_dtype),
                     fmt::format("--training.local_batch_size={}", facts["batch"].get<int64_t>()),
                     fmt::format("--training.seq_len={}", facts["seq"].get<int64_t>())});
    const auto result = run_program(words, scratch.path());
    ASSERT_EQ(result.exit_code, 0) << result.err;
    lines = read_json_lines(dump / "metrics.jsonl");
    ASSERT_EQ(lines.size(), 10U);
  }

  const ScratchFolder scratch;
  const std::filesystem::path folder = oracle_folder(GetParam());
  const std::filesystem::path dump = scratch.path() / "out";
  const Json facts = parse_json(read_file(folder / "oracle.json"), "oracle.json");
  const std::map<std::string, std::string> oracle = read_tensors(folder);
  std::vector<Json> lines;
};

TEST_P(OracleCli, TenStepsOfTrainEqualPytorch) {
  ASSERT_NO_FATAL_FAILURE(run("float32"));
  for (size_t i = 0; i < lines.size(); ++i) {
    const Json& want = facts["steps"][i];
    EXPECT_EQ(lines[i]["step"], want["step"]);
    EXPECT_NEAR(lines[i]["loss"].get<double>(), want["loss"].get<double>(), 2e-5) << i;
    const double norm = want["grad_norm"].get<double>();
    EXPECT_NEAR(lines[i]["grad_norm"].get<double>(), norm, 1e-4 * norm) << i;
  }
  expect_export_of(folder, dump / "checkpoint/step-10");
}

// Compares how far ten bf16 steps in `lines` stray from PyTorch's fp32 steps with how far PyTorch's
// own bf16 runs do. Each model amplifies roundings by its own amount. Of 64 runs for each of 20
// models, the worst step is 4.8 times the model's rms off, and the worst run's rms is 2.1 times it
// (tools/make_oracles.py --bf16).
void expect_strays_as_pytorch(const std::vector<Json>& lines, const Json& facts, const char* key) {
  const double rms = facts["bf16"][fmt::format("{}_rms", key)].get<double>();
  double squares = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const double stray = lines[i][key].get<double>() / facts["steps"][i][key].get<double>() - 1;
    EXPECT_LE(std::abs(stray), 5 * rms) << key << " of step " << i + 1;
    squares += stray * stray;
  }
  EXPECT_LE(std::sqrt(squares / static_cast<double>(lines.size())), 2.5 * rms) << key;
}

TEST_P(OracleCli, TenStepsInBf16StrayAsPytorchsDo) {
  ASSERT_NO_FATAL_FAILURE(run("bfloat16"));
  expect_strays_as_pytorch(lines, facts, "loss");
  expect_strays_as_pytorch(lines, facts, "grad_norm");
}

INSTANTIATE_TEST_SUITE_P(PyTorch, OracleCli, oracle_names(),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace
}  // namespace tokamak
