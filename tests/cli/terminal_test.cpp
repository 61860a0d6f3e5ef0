// These tests read what a run shows on a terminal, in a pipe, and without colours.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/program.h"

namespace tokamak {
namespace {

class Terminal : public testing::Test {
 public:
  ~Terminal() override { std::filesystem::remove_all(folder_); }

 protected:
  std::vector<std::string> words(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{TOK_PROGRAM,
                                 "train",
                                 "--job.dump_folder=" + folder_.string(),
                                 "--job.device=cpu",
                                 "--training.dataset=synthetic",
                                 "--training.seq_len=32",
                                 "--training.local_batch_size=1",
                                 "--training.steps=7",
                                 "--metrics.log_freq=5"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  // Runs the program with a terminal of util-linux's script as its standard output.
  std::string on_terminal(const std::string& environment,
                          const std::vector<std::string>& more = {}) {
    const auto file = folder_.string() + ".typescript";
    const std::string command =
        fmt::format("stty cols 80; {} {}", environment, fmt::join(words(more), " "));
    const auto run = run_program({"/usr/bin/script", "-qefc", command, file});
    EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
    std::string shown = read_file(file);
    std::filesystem::remove(file);
    return shown;
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("tokamak_terminal_{}", getpid());
};

int64_t count(const std::string& text, const std::string& part) {
  int64_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST_F(Terminal, APipeGetsPlainLinesAndTheLastStep) {
  const auto run = run_program(words());
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(count(run.out, "\033"), 0) << run.out;
  EXPECT_EQ(count(run.out, "\r"), 0) << run.out;
  EXPECT_EQ(count(run.out, "[titan]"), 0) << run.out;
  EXPECT_EQ(count(run.out, " step: "), 3) << run.out;
  EXPECT_EQ(count(run.out, " step:  7  loss: "), 1) << run.out;
}

TEST_F(Terminal, TorchtitansFormatAndColoursAreThereOnDemand) {
  const auto run = run_program(words({"--log-format=torchtitan", "--color=always"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(count(run.out, "[titan] "), count(run.out, "\n")) << run.out;
  EXPECT_EQ(count(run.out, " - root - INFO - \033[31mstep:  1  \033[32mloss: "), 1) << run.out;
  const auto bad = run_program(words({"--color=red"}));
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_EQ(bad.err, "tokamak: --color=red: wanted auto, always or never\n");
}

TEST_F(Terminal, ATerminalHasALineThatIsRewrittenAndIsGoneAtTheEnd) {
  if (!path_exists("/usr/bin/script")) GTEST_SKIP() << "there is no script";
  const std::string shown = on_terminal("TERM=xterm NO_COLOR=");
  EXPECT_GE(count(shown, "step 7/7  100%  "), 0);
  EXPECT_GE(count(shown, "\r\033[2K"), 3) << shown;
  EXPECT_NE(shown.find(" tok/s"), std::string::npos) << shown;
  EXPECT_NE(shown.find("\033[31mstep:  5"), std::string::npos) << shown;
  const size_t last_line = shown.rfind("Training completed");
  ASSERT_NE(last_line, std::string::npos) << shown;
  EXPECT_NE(shown.find("\r\033[2K", last_line), std::string::npos) << shown;
}

TEST_F(Terminal, NoColorAndADumbTerminalAreHeeded) {
  if (!path_exists("/usr/bin/script")) GTEST_SKIP() << "there is no script";
  const std::string plain = on_terminal("TERM=xterm NO_COLOR=1");
  EXPECT_EQ(count(plain, "\033[3"), 0) << plain;
  EXPECT_GE(count(plain, "\r\033[2K"), 3) << plain;
  const std::string dumb = on_terminal("TERM=dumb");
  EXPECT_EQ(count(dumb, "\033"), 0) << dumb;
  const std::string colored = on_terminal("TERM=dumb", {"--color=always"});
  EXPECT_NE(colored.find("\033[31mstep:"), std::string::npos) << colored;
}

TEST_F(Terminal, HelpOfEveryVerbIsShort) {
  const auto usage = run_program({TOK_PROGRAM, "--help"});
  int verbs = 0;
  for (size_t at = usage.out.find("\n  "); at != std::string::npos;
       at = usage.out.find("\n  ", at + 1)) {
    const std::string verb = usage.out.substr(at + 3, usage.out.find(' ', at + 3) - at - 3);
    if (verb == "help") continue;
    const auto help = run_program({TOK_PROGRAM, verb, "--help"});
    EXPECT_EQ(help.exit_code, 0) << verb;
    EXPECT_LT(count(help.out, "\n"), 60) << verb << "\n" << help.out;
    EXPECT_GT(help.out.size(), 40U) << verb;
    ++verbs;
  }
  EXPECT_GE(verbs, 13);
}

TEST_F(Terminal, MisspeltWordsGetTheNearestNameIfOneIsNear) {
  const auto error_of = [](std::vector<std::string> words) {
    words.insert(words.begin(), TOK_PROGRAM);
    const auto run = run_program(words);
    EXPECT_EQ(run.exit_code, 2);
    return run.err;
  };
  EXPECT_EQ(error_of({"trian"}),
            "tokamak: no verb \"trian\"; the nearest is train; `tokamak --help` lists them\n");
  EXPECT_EQ(error_of({"xyzzy"}), "tokamak: no verb \"xyzzy\"; `tokamak --help` lists them\n");
  EXPECT_EQ(error_of({"train", "--dryrun"}),
            "tokamak: --dryrun: no such flag; the nearest is --dry-run\n");
  EXPECT_EQ(error_of({"train", "-x"}),
            "tokamak: -x: no such flag; `tokamak train --help` lists them\n");
  EXPECT_EQ(error_of({"train", "--training.zz=3"}),
            "tokamak: --training.zz: no such key; `tokamak help training` lists the keys\n");
  EXPECT_EQ(error_of({"generate", "--promt", "x"}),
            "tokamak: generate: The following argument was not expected: --promt; the nearest is "
            "--prompt\n");
}

TEST_F(Terminal, TheVersionNamesTheCommit) {
  const auto version = run_program({TOK_PROGRAM, "-V"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.out.find("tokamak 0."), 0U) << version.out;
  EXPECT_EQ(run_program({TOK_PROGRAM, "--version"}).out, version.out);
}

}  // namespace
}  // namespace tokamak
