// `tokamak train --proxy`: published runs, scaled down, on the ranks that train starts itself.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/mesh_cli_run.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSteps = 3;

Words proxy_words(const Words& what, const fs::path& dump, const Words& more = {}) {
  return Words{TOK_PROGRAM, "train"} + what +
         Words{"--proxy", "--job.dump_folder=" + dump.string(), "--metrics.log_freq=1",
               fmt::format("--training.steps={}", kSteps), "--lr_scheduler.warmup_steps=0"} +
         more;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ProxyRun, OfPresetsEndsWithTheirTable) {
  const struct {
    const char* preset;
    int ranks;
  } cases[] = {{"nemo-405b-576-bf16", 16},
               {"nemo-405b-32-fp8", 8},
               {"frontier-8b-832-nodes", 8},
               {"bench-gpt2-124m-h100", 1}};

  for (const auto& c : cases) {
    SCOPED_TRACE(c.preset);
    const ScratchFolder dump;
    const ProgramResult run = run_ok(proxy_words({"--preset", c.preset}, dump.path()));
    EXPECT_EQ(run.out.rfind("scaled ", 0), 0U) << "first says what was scaled:\n" << run.out;
    EXPECT_TRUE(has(run.out, "Training completed")) << run.out;
    EXPECT_TRUE(has(run.out, fmt::format("proxy, {} CPU rank", c.ranks))) << run.out;
    EXPECT_TRUE(has(run.out, "MFU %, corrected")) << run.out;
    EXPECT_TRUE(path_exists(dump.path() / "proxy.toml"));
    const Json table = parse_json(read_file(dump.path() / "preset.json"), "preset.json");
    EXPECT_EQ(table.at("preset"), c.preset);
    EXPECT_GT(table.at("columns").at(1).at("step_time_s").get<double>(), 0.0);
    EXPECT_GT(table.at("columns").at(2).at("step_time_s").get<double>(), 0.0);
    EXPECT_EQ(read_curve(dump.path()).loss.size(), kSteps);
  }
}

TEST(ProxyRun, DryRunPrintsTheScaledPlan) {
  const ScratchFolder dump;
  const auto run = run_program(proxy_words({"--preset=nemo-405b-576-bf16"}, dump.path(),
                                           {"--dry-run", "--training.seq_len=128"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out.rfind("scaled ", 0), 0U) << run.out;
  EXPECT_TRUE(has(run.out, "memory of one rank, batch 14 x 128")) << run.out;
  EXPECT_TRUE(has(run.out, "planned for 16 ranks")) << run.out;
  EXPECT_FALSE(has(run.out, "needs:")) << run.out;
  EXPECT_TRUE(list_folder(dump.path()).empty());
}

TEST(ProxyRun, TakesFewerRanksAndKeysAsWritten) {
  const ScratchFolder dump;
  const auto run = run_ok(proxy_words({"--preset=nemo-405b-32-bf16"}, dump.path(),
                                      {"--proxy=2", "--parallelism.tensor_parallel_degree=1",
                                       "--parallelism.context_parallel_degree=2"}));
  const Json table = parse_json(read_file(dump.path() / "preset.json"), "preset.json");
  EXPECT_EQ(table.at("columns").at(2).at("column"), "proxy, 2 CPU ranks") << run.out;
}

TEST(ProxyRun, RefusesWhatIsNoNumberOfRanks) {
  const auto run = run_program({TOK_PROGRAM, "train", "--preset=nemo-405b-32-bf16", "--proxy=x"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.err, "tokamak: --proxy=x: wanted a positive number\n");
}

// The plan that a search of the 405B preset writes trains at proxy size, and its mesh computes what
// one rank does.
TEST(ProxyRun, OfASearchedPlanEqualsOneRank) {
  const ScratchFolder folder;
  const std::string plan = (folder.path() / "plan.toml").string();
  run_ok({TOK_PROGRAM, "search", "--preset=nemo-405b-576-bf16", "--cluster=h100", "--write", plan});
  const fs::path mesh = folder.path() / "mesh";
  const Words exact{"--training.mixed_precision_param=float32"};
  run_ok(proxy_words({plan}, mesh, exact));
  const std::string proxy = read_file(mesh / "proxy.toml");
  const size_t at = proxy.find("global_batch_size = ");
  ASSERT_NE(at, std::string::npos) << proxy;
  const fs::path one = folder.path() / "one";
  Words words{
      TOK_PROGRAM, "train", (mesh / "proxy.toml").string(), "--job.dump_folder=" + one.string(),
      fmt::format("--training.local_batch_size={}",
                  std::stoi(proxy.substr(at + std::string("global_batch_size = ").size())))};
  for (const char* axis : {"pipeline_parallel", "data_parallel_replicate", "data_parallel_shard",
                           "context_parallel", "tensor_parallel"})
    words.push_back(fmt::format("--parallelism.{}_degree=1", axis));
  run_ok(words);
  expect_same_curve(mesh, one, kSteps);
}

}  // namespace
}  // namespace tokamak
