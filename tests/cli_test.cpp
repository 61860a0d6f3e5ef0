#include <algorithm>
#include <string>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tokamak
