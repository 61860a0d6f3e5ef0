// These tests read what a run shows on a terminal, in a pipe, and without colours.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/processes.h"
#include "tests/fixtures/program.h"
#include "tests/fixtures/training_run.h"

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

TEST_F(Terminal, LogLinesFitTheTerminalAndAPipeGetsThemWhole) {
  if (!path_exists("/usr/bin/script")) GTEST_SKIP() << "there is no script";
  const std::string shown = on_terminal("TERM=xterm NO_COLOR=1", {"--training.steps=10"});
  size_t steps = 0;
  for (size_t at = shown.find(" step: "); at != std::string::npos;
       at = shown.find(" step: ", at + 1)) {
    const size_t begin = shown.rfind("20", at);
    EXPECT_LE(shown.find('\r', at) - begin, 80U) << shown.substr(begin, 150);
    EXPECT_NE(shown.substr(at, 60).find("  grad_norm: "), std::string::npos) << shown;
    ++steps;
  }
  EXPECT_EQ(steps, 3U);
  EXPECT_NE(run_program(words()).out.find("  tflops: "), std::string::npos);
}

// Only a terminal shows how far a long verb is.
TEST_F(Terminal, APipeGetsNoLineThatIsRewritten) {
  std::filesystem::create_directories(folder_);
  const std::string text = (folder_ / "a.txt").string();
  FileWriter(text).write(std::string(300'000, 'a'));
  const std::vector<std::string> cache{TOK_PROGRAM, "tokenizer", "cache",
                                       "text",      text,        "--tokenizer=bytes"};
  const std::string own_cache = "--cache=" + folder_.string();
  std::vector<std::string> in_pipe = cache;
  in_pipe.push_back(own_cache + "/pipe");
  const auto piped = run_program(in_pipe);
  EXPECT_EQ(piped.exit_code, 0) << piped.err;
  EXPECT_EQ(count(piped.err, "\r"), 0) << piped.err;
  EXPECT_EQ(count(piped.err, "\n"), 1) << piped.err;
  EXPECT_NE(piped.err.find("a.txt: 300,"), std::string::npos) << piped.err;
  if (!path_exists("/usr/bin/script")) return;
  const std::string file = (folder_ / "typescript").string();
  const auto live =
      run_program({"/usr/bin/script", "-qefc",
                   fmt::format("TERM=xterm {} {}/live", fmt::join(cache, " "), own_cache), file});
  EXPECT_EQ(live.exit_code, 0) << live.err;
  EXPECT_GE(count(read_file(file), "\r\033[2K"), 1) << read_file(file);
}

TEST_F(Terminal, DoctorSaysWhatIsHereAtOnce) {
  std::filesystem::create_directories(folder_);
  const auto run = run_program({"/usr/bin/env", "TOKAMAK_CACHE=" + folder_.string(), TOK_PROGRAM,
                                "doctor", "--seconds", "0", "--dump-folder", folder_.string()});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out.find("cpu "), 0U) << run.out;
  EXPECT_NE(run.out.find("\ngpu "), std::string::npos) << run.out;
  EXPECT_EQ(run.out.find("GFLOP/s"), std::string::npos) << run.out;
  EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "nothing is saved";
}

TEST_F(Terminal, EveryVerbWithPresetsListsThem) {
  const std::string wanted = run_program({TOK_PROGRAM, "price", "--preset", "list"}).out;
  EXPECT_GT(count(wanted, "\n"), 10);
  for (const char* verb : {"train", "plan", "search", "sweep"}) {
    const auto run = run_program({TOK_PROGRAM, verb, "--preset", "list"});
    EXPECT_EQ(run.exit_code, 0) << verb << run.err;
    EXPECT_EQ(run.out, wanted) << verb;
  }
}

TEST_F(Terminal, AReaderThatPausesHoldsNoStepAndMissesNoLine) {
  std::filesystem::create_directories(folder_);
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GT(::fcntl(reader, F_SETPIPE_SZ, 4096), 0);
  RunningProgram run({"/bin/sh", "-c",
                      fmt::format("exec {} > {}",
                                  fmt::join(words({"--training.steps=80", "--metrics.log_freq=1",
                                                   "--comm.train_timeout_seconds=1"}),
                                            " "),
                                  pipe)});
  await([&] { return steps_logged(folder_) == 80; }, "the last step, while nobody reads", 60);
  std::string shown;
  std::string part(1 << 16, '\0');
  for (ssize_t n = 1; n != 0;) {
    n = ::read(reader, part.data(), part.size());
    shown.append(part, 0, static_cast<size_t>(std::max<ssize_t>(n, 0)));
  }
  ::close(reader);
  EXPECT_EQ(run.wait().exit_code, 0);
  EXPECT_EQ(count(shown, " step: "), 80) << shown;
  EXPECT_EQ(count(shown, "Training completed"), 1) << shown;
}

TEST_F(Terminal, ALogThatCannotBeWrittenChangesNoExitCode) {
  const auto to = [&](const std::string& place, const std::vector<std::string>& more) {
    const std::string command =
        fmt::format("set -o pipefail; {} {}", fmt::join(words(more), " "), place);
    return run_program({"/bin/bash", "-c", command});
  };
  for (const char* place : {"> /dev/full", "| head -n 1", ">&-"}) {
    EXPECT_EQ(to(place, {}).exit_code, 0) << place;
  }
  EXPECT_EQ(to("> /dev/full", {"--dry-run"}).exit_code, 2) << "which is only there to be read";
}

TEST_F(Terminal, NamesFromFilesGiveItNoOrders) {
  std::filesystem::create_directories(folder_);
  FileWriter(folder_ / "config.json").write(R"({"architectures": ["\u001b[2J"]})");
  const auto run = run_program({TOK_PROGRAM, "train", "--dry-run", "--model.flavor=hf",
                                "--model.hf_assets_path=" + folder_.string(),
                                "--training.dataset=synthetic", "--job.device=cpu"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find("architecture \"\\x1b[2J\" is not supported"), std::string::npos)
      << run.err;
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
  EXPECT_EQ(error_of({"generate", "x", "--promt", "y", "z"}),
            "tokamak: generate: no such argument: --promt y z; the nearest is --prompt\n");
  EXPECT_EQ(error_of({"launch", "-n", "2", "train", "my.toml", "--training.steps=3"}),
            "tokamak: tokamak launch: wanted -- before the command: tokamak launch -n 2 -- train "
            "my.toml --training.steps=3\n");
  EXPECT_EQ(error_of({"price", "--cluster", "h1000", "--gpus", "8"}),
            "tokamak: no machine \"h1000\"; the nearest is h100; `tokamak price --cluster list` "
            "prints all, and a file is NAME.toml\n");
}

TEST_F(Terminal, TheVersionNamesTheCommit) {
  const auto version = run_program({TOK_PROGRAM, "-V"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.out.find("tokamak 0."), 0U) << version.out;
  EXPECT_EQ(run_program({TOK_PROGRAM, "--version"}).out, version.out);
}

}  // namespace
}  // namespace tokamak
