#include <algorithm>
#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tokamak/core/file.h"

#include "tests/program.h"

namespace tokamak {
namespace {

int64_t lines_in(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

TEST(Cli, VersionAndHelpGoToStdout) {
  const auto version = run_program({TOK_PROGRAM, "--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_NE(version.out.find("0.1.0"), std::string::npos) << version.out;
  const auto help = run_program({TOK_PROGRAM, "--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* verb :
       {"train", "plan", "bench", "generate", "convert", "tokenizer", "doctor"}) {
    EXPECT_NE(help.out.find(verb), std::string::npos) << verb;
  }
}

TEST(Cli, AUsersMistakeIsOneLineAndExitCode2) {
  const auto verb = run_program({TOK_PROGRAM, "trian"});
  EXPECT_EQ(verb.exit_code, 2);
  EXPECT_EQ(lines_in(verb.err), 1) << verb.err;
  const auto file = run_program({TOK_PROGRAM, "train", "no_such_file.toml"});
  EXPECT_EQ(file.exit_code, 2);
  EXPECT_NE(file.err.find("no_such_file.toml"), std::string::npos) << file.err;
}

TEST(Cli, PlanShowsThePipelineScheduleOfTheKeys) {
  const auto file = std::filesystem::temp_directory_path() /
                    fmt::format("tokamak_schedule_{}.svg", static_cast<int>(getpid()));
  const auto plan =
      run_program({TOK_PROGRAM, "plan", "--print-schedule", "--schedule-svg", file.string(),
                   "--parallelism.pipeline_parallel_degree=4", "--training.local_batch_size=8"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_NE(plan.out.find("1F1B: 4 ranks, 4 stages, 8 microbatches; 33 units of time"),
            std::string::npos)
      << plan.out;
  EXPECT_NE(plan.out.find("\nrank 3 .  .  .  F0 B0--- F1"), std::string::npos) << plan.out;
  EXPECT_NE(plan.out.find("stage 3 on rank 3: layer 5, norm, output\n"), std::string::npos)
      << plan.out;
  EXPECT_NE(read_file(file).find("<title>3B7</title>"), std::string::npos);
  std::filesystem::remove(file);
  const auto wrong = run_program(
      {TOK_PROGRAM, "plan", "--print-schedule", "--parallelism.pipeline_parallel_degree=16"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.err.find("parallelism.pipeline_parallel_degree = 16"), std::string::npos)
      << wrong.err;
}

}  // namespace
}  // namespace tokamak
