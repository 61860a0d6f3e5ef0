#include "tokamak/train/report/metrics_command.h"

#include <ctime>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "tokamak/core/file.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

class MetricsCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  void TearDown() override { fs::remove_all(folder_); }

  void append(const char* file, const std::string& text) const {
    std::ofstream(folder_ / file, std::ios::app) << text;
  }

  std::string text(const char* file) const { return read_file(folder_ / file); }

  // The command runs with the folder in $TOKAMAK_DUMP_FOLDER.
  MetricsCommand::Options options(const std::string& command) {
    return {.command = "cd \"$TOKAMAK_DUMP_FOLDER\"; " + command,
            .files = {folder_ / "metrics.jsonl", folder_ / "events.jsonl"},
            .environment = {"TOKAMAK_DUMP_FOLDER=" + folder_.string()},
            .log = folder_ / "log",
            .warn =
                [this](const std::string& text) {
                  const std::lock_guard lock(mutex_);
                  warnings_.push_back(text);
                },
            .poll = milliseconds(1),
            .first_pause = milliseconds(1)};
  }

  const fs::path folder_ =
      fs::path(testing::TempDir()) /
      fmt::format("tokamak_command_{}_{}",
                  testing::UnitTest::GetInstance()->current_test_info()->name(), ::getpid());
  std::mutex mutex_;
  std::vector<std::string> warnings_;
};

TEST_F(MetricsCommandTest, SendsWholeLinesOfAllFiles) {
  append("metrics.jsonl", "one\ntwo\n");
  {
    MetricsCommand command(options("cat > got; echo done >> log"));
    append("metrics.jsonl", "three\nto");
    append("events.jsonl", "said\n");
  }
  std::string got = text("got");
  for (const char* line : {"one\n", "two\n", "three\n", "said\n"})
    EXPECT_NE(got.find(line), std::string::npos) << got;
  EXPECT_EQ(got.size(), std::string("one\ntwo\nthree\nsaid\n").size()) << "a torn line was sent";
  EXPECT_EQ(text("log"), "done\n");
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(MetricsCommandTest, SendsManyLinesToASlowReader) {
  std::string lines;
  for (int i = 0; i < 300'000; ++i) lines += fmt::format("line {}\n", i);
  append("metrics.jsonl", lines);
  { MetricsCommand command(options("dd bs=1000 status=none > got")); }
  EXPECT_EQ(text("got"), lines);
}

TEST_F(MetricsCommandTest, AProgramThatDiesIsStartedAgainAndGetsAllLines) {
  append("metrics.jsonl", "one\ntwo\n");
  {
    MetricsCommand command(options(
        "echo start >> starts; if [ $(wc -l < starts) -lt 3 ]; then head -n 1 > first; exit 3; fi; "
        "cat > got"));
    append("metrics.jsonl", "three\n");
  }
  EXPECT_EQ(text("starts"), "start\nstart\nstart\n");
  EXPECT_EQ(text("got"), "one\ntwo\nthree\n");
  ASSERT_EQ(warnings_.size(), 2U);
  EXPECT_NE(warnings_[0].find("metrics.command ended with exit code 3"), std::string::npos)
      << warnings_[0];
}

TEST_F(MetricsCommandTest, AProgramThatNeverReadsDelaysTheEndByItsWaitAtMost) {
  append("metrics.jsonl", std::string(1 << 22, 'x') + "\n");
  MetricsCommand::Options o = options("echo $$ > pid; exec tail -f /dev/null");
  o.last_wait = milliseconds(300);
  const auto start = std::chrono::steady_clock::now();
  { MetricsCommand command(o); }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(kill(std::stoi(text("pid")), SIGKILL), 0) << "it goes on by itself";
}

TEST_F(MetricsCommandTest, AProgramThatClosesItsInputAndStaysCostsNoTime) {
  append("metrics.jsonl", "one\n");
  MetricsCommand::Options o =
      options("trap '' TERM; exec 0<&-; echo $$ > pid; exec tail -f /dev/null");
  o.last_wait = milliseconds(500);
  const std::clock_t before = std::clock();
  { MetricsCommand command(o); }
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.25);
  EXPECT_EQ(kill(std::stoi(text("pid")), SIGKILL), 0);
}

TEST_F(MetricsCommandTest, ACommandThatFailsAtOnceEndsNothing) {
  append("metrics.jsonl", "one\n");
  MetricsCommand::Options o = options("no-such-program-here");
  o.last_wait = milliseconds(300);
  { MetricsCommand command(o); }
  ASSERT_FALSE(warnings_.empty());
  EXPECT_LE(warnings_.size(), 5U);
  EXPECT_NE(warnings_[0].find("exit code 127"), std::string::npos) << warnings_[0];
  EXPECT_NE(text("log").find("no-such-program-here"), std::string::npos);
}

}  // namespace
}  // namespace tokamak
