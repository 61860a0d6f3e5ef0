#include "tokamak/comm/watchdog.h"

#include <gtest/gtest.h>

namespace tokamak {
namespace {

using Seconds = SilenceRule::Seconds;
using Sample = SilenceRule::Sample;

/// Feeds a rule with samples of half a second.
struct Rank {
  SilenceRule rule;
  Sample sample{.activity = RankActivity::kComputing};

  Rank() { rule.set_limits({.start = Seconds(300), .progress = Seconds(100)}); }

  /// Lets steps of `seconds` pass.
  void steps(int count, double seconds) {
    for (int i = 0; i < count; ++i) {
      for (double t = 0.5; t < seconds; t += 0.5) EXPECT_EQ(rule.look(sample, Seconds(0.5)), "");
      ++sample.ticks;
      ++sample.step;
      EXPECT_EQ(rule.look(sample, Seconds(0.5)), "");
    }
  }

  /// Returns after how many seconds of silence the rule speaks, at most `most`.
  double silence(double most = 1000) {
    for (double t = 0.5; t < most; t += 0.5) {
      if (!rule.look(sample, Seconds(0.5)).empty()) return t;
    }
    return most;
  }
};

TEST(SilenceRule, StepsThatAreQuickMayNotBeSilentForLong) {
  Rank rank;
  rank.steps(5, 0.5);
  EXPECT_NEAR(rank.silence(), 8.5, 0.1);
}

TEST(SilenceRule, SlowStepsGetTenTimesAsLong) {
  Rank rank;
  rank.steps(5, 4.0);
  EXPECT_NEAR(rank.silence(), 40.5, 0.1);
  Rank slower;
  slower.steps(5, 20.0);
  EXPECT_NEAR(slower.silence(), 100.5, 0.1) << "comm.train_timeout_seconds is the most";
  Rank slowest;
  slowest.steps(5, 90.0);
  EXPECT_NEAR(slowest.silence(), 270.5, 0.1) << "where steps are quicker than that";
}

TEST(SilenceRule, ValidationIsJudgedByNoStep) {
  Rank rank;
  rank.steps(5, 0.5);
  rank.sample.activity = RankActivity::kValidating;
  EXPECT_NEAR(rank.silence(), 101.0, 0.6);
}

TEST(SilenceRule, TheFirstStepsAndTheStartHaveALimitOfTheirOwn) {
  Rank rank;
  rank.steps(1, 0.5);
  EXPECT_NEAR(rank.silence(), 300.5, 0.1);
  Rank start;
  start.sample.activity = RankActivity::kStarting;
  EXPECT_NEAR(start.silence(), 300.5, 0.1);
}

TEST(SilenceRule, ASaveMayTakeAsLongAsItWrites) {
  Rank rank;
  rank.steps(5, 0.5);
  rank.sample.activity = RankActivity::kFiles;
  for (int i = 0; i < 1000; ++i) {
    ++rank.sample.num_file_calls;
    EXPECT_EQ(rank.rule.look(rank.sample, Seconds(0.5)), "");
  }
  EXPECT_NEAR(rank.silence(), 100.5, 0.1);
}

TEST(SilenceRule, ACallToAFileHasTheLimitOfItsOwn) {
  Rank rank;
  rank.rule.set_limits({.start = Seconds(300), .progress = Seconds(2), .file_call = Seconds(60)});
  rank.steps(5, 0.5);
  rank.sample.activity = RankActivity::kFiles;
  rank.sample.file_call = {.number = 7, .text = "fsync of /runs/a"};
  EXPECT_NEAR(rank.silence(), 60.5, 1.0);
  rank.sample.file_call = {};
  ++rank.sample.num_file_calls;
  EXPECT_NEAR(rank.silence(), 5.5, 1.0);
}

TEST(SilenceRule, LoadingMayTakeAsLongAsItReads) {
  Rank rank;
  rank.sample.activity = RankActivity::kStarting;
  for (int i = 0; i < 1000; ++i) {
    ++rank.sample.num_file_calls;
    EXPECT_EQ(rank.rule.look(rank.sample, Seconds(0.5)), "");
  }
}

TEST(SilenceRule, ACallThatDoesNotReturnIsNamedWhateverElseGoesOn) {
  Rank rank;
  rank.steps(5, 0.5);
  rank.sample.file_call = {.number = 7, .text = "fsync of /runs/a"};
  rank.steps(50, 1.0);
  rank.sample.file_call = {.number = 8, .text = "fsync of /runs/b"};
  rank.steps(59, 1.0);
  rank.sample.is_in_collective = true;
  EXPECT_LT(rank.silence(), 3.0);
  EXPECT_NE(rank.rule.look(rank.sample, Seconds(0.5)).find("fsync of /runs/b has not returned"),
            std::string::npos);
}

TEST(SilenceRule, WaitsForPeersAreNotItsConcern) {
  Rank rank;
  rank.steps(5, 0.5);
  rank.sample.is_in_collective = true;
  EXPECT_EQ(rank.silence(500), 500);
  rank.sample.is_in_collective = false;
  rank.steps(2, 0.5);
  EXPECT_NEAR(rank.silence(), 8.5, 0.1) << "a wait is no measure of a step";
}

}  // namespace
}  // namespace tokamak
