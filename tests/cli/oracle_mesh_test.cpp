// Meshes of processes against PyTorch: ten losses and the export of each family's oracle
// (tests/oracles).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/mesh_cli_run.h"
#include "tests/fixtures/oracle_export.h"

namespace tokamak {
namespace {

struct Axis {
  const char* name;
  std::vector<const char*> degrees;  ///< keys of 2 ranks each
};

class OracleMesh : public ::testing::TestWithParam<std::tuple<const char*, Axis>> {};

TEST_P(OracleMesh, TenStepsEqualPytorch) {
  const auto& [model, axis] = GetParam();
  const ScratchFolder scratch;
  const auto folder = oracle_folder(model);
  const Json facts = parse_json(read_file(folder / "oracle.json"), "oracle.json");
  FileWriter(scratch.path() / "stream.u32").write(read_tensors(folder).at("tokens"));
  Words words =
      train_words(model, scratch.path() / "out",
                  {"--checkpoint.enable", "--checkpoint.initial_load_path=" + folder.string(),
                   "--checkpoint.initial_load_in_hf", "--checkpoint.last_save_in_hf",
                   "--training.dataset=tokens",
                   "--training.dataset_path=" + (scratch.path() / "stream.u32").string(),
                   "--training.steps=10", "--optimizer.lr=1e-3",
                   fmt::format("--training.global_batch_size={}", facts["batch"].get<int64_t>()),
                   fmt::format("--training.seq_len={}", facts["seq"].get<int64_t>())});
  for (const char* key : axis.degrees)
    words.push_back(fmt::format("--parallelism.{}_degree=2", key));
  const bool is_pipeline = std::string(axis.name).find("pp") != std::string::npos;
  words.push_back(fmt::format("--training.local_batch_size={}",
                              facts["batch"].get<int64_t>() / (is_pipeline ? 1 : 2)));
  if (is_pipeline) words.emplace_back("--parallelism.pipeline_parallel_microbatch_size=1");
  run_ok(on_ranks(1 << axis.degrees.size(), words));
  const Curve curve = read_curve(scratch.path() / "out");
  ASSERT_EQ(curve.loss.size(), 10U);
  for (size_t i = 0; i < curve.loss.size(); ++i) {
    const Json& want = facts["steps"][i];
    EXPECT_NEAR(curve.loss[i], want["loss"].get<double>(), 2e-5) << "step " << i + 1;
    const double norm = want["grad_norm"].get<double>();
    EXPECT_NEAR(curve.grad_norm[i], norm, 1e-4 * norm) << "step " << i + 1;
  }
  expect_export_of(folder, scratch.path() / "out/checkpoint/step-10");
}

INSTANTIATE_TEST_SUITE_P(
    PyTorch, OracleMesh,
    ::testing::Combine(::testing::Values("llama_biased", "mistral_window", "qwen2_tiny",
                                         "qwen3_window", "gemma_tiny", "gemma2_tiny", "gemma3_tiny",
                                         "gpt2_scaled"),
                       ::testing::Values(Axis{"fsdp", {"data_parallel_shard"}},
                                         Axis{"tp", {"tensor_parallel"}},
                                         Axis{"pp", {"pipeline_parallel"}},
                                         Axis{"tp_pp", {"tensor_parallel", "pipeline_parallel"}})),
    [](const auto& of) {
      return fmt::format("{}_{}", std::get<0>(of.param), std::get<1>(of.param).name);
    });

}  // namespace
}  // namespace tokamak
