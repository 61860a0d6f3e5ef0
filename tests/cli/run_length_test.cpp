// How long a run is, and what is left of it: tokens and epochs, a run that is extended, one that is
// stopped though it saves nothing, one that only validates.
#include <csignal>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/processes.h"
#include "tests/fixtures/training_run.h"

namespace tokamak {
namespace {

class RunLength : public ::testing::Test {
 protected:
  // Words of a run whose length `more` gives.
  Words words(const Words& more) const {
    Words all = train_words("llama_tiny", dump(),
                            {"--training.seq_len=16", "--training.local_batch_size=2"});
    std::erase(all, "--training.steps=6");
    return all + more;
  }

  ProgramResult train(const Words& more) const { return run_program(words(more), scratch.path()); }

  size_t steps_of(const Words& more) const {
    const auto result = train(more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const auto lines = read_json_lines(dump() / "metrics.jsonl");
    return lines.empty() ? 0 : lines.back().at("step").get<size_t>();
  }

  std::filesystem::path dump() const { return scratch.path() / "out"; }

  const ScratchFolder scratch;
};

TEST_F(RunLength, TokensAndEpochsBecomeWholeSteps) {
  EXPECT_EQ(steps_of({"--training.tokens=100"}), 4U);  // of 2 x 16
  EXPECT_EQ(steps_of({"--training.tokens=0.16k"}), 5U);
  write_tokens(scratch.path() / "a.u32", 17 * 7 + 3, 100);
  const Words data{"--training.dataset=tokens", "--training.dataset_path=a.u32"};
  EXPECT_EQ(steps_of(data + Words{"--training.epochs=1"}), 4U);  // of 7 windows
  EXPECT_EQ(steps_of(data + Words{"--training.epochs=1.5", "--training.shuffle_seed=1"}), 6U);
}

TEST_F(RunLength, IsShownByAReport) {
  steps_of({"--training.steps=2"});
  const auto page =
      run_program({TOK_PROGRAM, "report", dump().string(), "-o", "-", "--title", "A short run"});
  EXPECT_EQ(page.exit_code, 0) << page.err;
  EXPECT_NE(page.out.find("A short run"), std::string::npos);
}

TEST_F(RunLength, OneSourceGivesOneLength) {
  FileWriter(scratch.path() / "a.toml").write("[training]\nsteps = 3\ntokens = \"1M\"\n");
  const auto both = run_program({TOK_PROGRAM, "train", "a.toml"}, scratch.path());
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_NE(both.err.find("a.toml:3: training.tokens: training.steps (a.toml:2) says how long the "
                          "run is too: keep one of them"),
            std::string::npos)
      << both.err;
  FileWriter(scratch.path() / "b.toml").write("[training]\nsteps = 3\n");
  EXPECT_EQ(steps_of({"--job.config_file=b.toml", "--training.tokens=64"}), 2U);
  const std::pair<const char*, const char*> bad[] = {
      {"--training.tokens=many", "training.tokens: wanted a number of tokens such as 300M or 20B"},
      {"--training.epochs=0", "training.epochs: wanted more than 0"},
      {"--training.epochs=2", "has no end; give training.steps or training.tokens"}};
  for (const auto& [word, text] : bad) {
    const auto result = train({word});
    EXPECT_EQ(result.exit_code, 2) << word;
    EXPECT_NE(result.err.find(text), std::string::npos) << result.err;
  }
}

TEST_F(RunLength, AFinishedRunIsExtended) {
  const Words common{"--checkpoint.enable", "--checkpoint.interval=100"};
  EXPECT_EQ(steps_of(common + Words{"--training.steps=3"}), 3U);
  EXPECT_EQ(steps_of(common + Words{"--training.steps=5"}), 5U);
  const auto resumed = timeless_metrics(dump());
  const ScratchFolder other;
  const auto whole = run_program(train_words(
      "llama_tiny", other.path(),
      {"--training.seq_len=16", "--training.local_batch_size=2", "--training.steps=5"}));
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(resumed, timeless_metrics(other.path()));
}

// The folder is what remains when a rank is killed after the last save, while it removes an older
// checkpoint.
TEST_F(RunLength, AFinishedRunRemovesWhatAKillLeft) {
  const Words command{"--checkpoint.enable", "--checkpoint.interval=2", "--training.steps=2"};
  EXPECT_EQ(steps_of(command), 2U);
  const auto left = dump() / "checkpoint/step-1.tmp-purged";
  std::filesystem::create_directories(left);
  FileWriter(left / "manifest.json").write("{}");
  const auto again = train(command);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.out.find("Training already completed"), std::string::npos) << again.out;
  EXPECT_FALSE(path_exists(left));
  EXPECT_TRUE(path_exists(dump() / "checkpoint/step-2/manifest.json"));
}

TEST_F(RunLength, AStopLeavesACheckpointThoughNothingElseIsSaved) {
  {
    RunningProgram run(words({"--training.steps=1000000"}), scratch.path());
    await([&] { return steps_logged(dump()) >= 3; }, "three steps");
    run.send(SIGINT);
    const auto result = run.wait();
    EXPECT_EQ(result.exit_code, 85) << result.err;
    EXPECT_NE(result.out.find("--checkpoint.enable --checkpoint.folder=stopped"), std::string::npos)
        << result.out;
  }
  const int64_t steps = steps_logged(dump());
  ASSERT_TRUE(path_exists(dump() / fmt::format("stopped/step-{}/manifest.json", steps)));
  EXPECT_EQ(steps_of({"--checkpoint.enable", "--checkpoint.folder=stopped",
                      fmt::format("--training.steps={}", steps + 2)}),
            static_cast<size_t>(steps) + 2);
}

TEST_F(RunLength, NoStepsAndValidationMeasureTheLoss) {
  write_tokens(scratch.path() / "a.u32", 17 * 20, 100);
  const Words validation{"--validation.enable",
                         "--validation.dataset=tokens",
                         "--validation.dataset_path=a.u32",
                         "--validation.seq_len=16",
                         "--validation.local_batch_size=2",
                         "--validation.freq=100",
                         "--checkpoint.enable"};
  EXPECT_EQ(steps_of(validation + Words{"--training.steps=2"}), 2U);
  const auto result = train(validation + Words{"--training.steps=0"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("validate step:  2"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("perplexity"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace tokamak
