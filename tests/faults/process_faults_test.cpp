// Ranks that die at random places: the job ends at once, starts again and loses nothing.
#include <csignal>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/comm/host_communicator.h"
#include "tokamak/core/file.h"

#include "tests/faults/fault_run.h"
#include "tests/fixtures/draw.h"
#include "tests/fixtures/processes.h"

namespace tokamak {
namespace {

struct DeathCase {
  const char* name;
  const char* rule;  ///< "once" is added
  int one_in = 4;    ///< days on which CI draws it
};

class RankDies : public testing::TestWithParam<DeathCase> {};

TEST_P(RankDies, TheJobStartsAgainAndLosesNothing) {
  const DeathCase& death = GetParam();
  if (!is_drawn(death.name, death.one_in)) GTEST_SKIP() << "not drawn at this commit";
  const ScratchFolder marks;
  const std::string once = ",once=" + (marks.path() / "done").string();
  FaultRun run({.launch = {"--max-restarts", "1"}, .faults = {death.rule + once}});
  const auto result = run.expect_end(0, 60);
  EXPECT_NE(result.err.find("restart 1 of 1"), std::string::npos) << result.err;
  run.expect_no_orphan();
  run.expect_same_losses();
}

INSTANTIATE_TEST_SUITE_P(
    Faults, RankDies,
    testing::Values(
        DeathCase{"killed_in_a_step", "rank=1,call=MPI_Isend,nth=150,do=kill", 1},
        DeathCase{"killed_in_a_save", "rank=1,call=write,path=.safetensors,nth=2,do=kill"},
        DeathCase{"killed_at_fsync", "rank=0,call=fsync,path=manifest,do=kill"},
        DeathCase{"killed_at_rename", "rank=0,call=rename,path=step-8,do=kill"},
        DeathCase{"killed_in_metrics", "rank=0,call=write,path=metrics.jsonl,nth=6,do=kill"},
        DeathCase{"segmentation_fault", "rank=1,call=MPI_Isend,nth=99,do=signal:11"},
        DeathCase{"abort", "rank=0,call=MPI_Isend,nth=120,do=signal:6"},
        DeathCase{"early_end", "rank=1,call=MPI_Isend,nth=130,do=exit:0"},
        DeathCase{"at_the_very_end", "rank=1,call=MPI_Finalize,do=kill"}),
    [](const auto& death) { return death.param.name; });

class LastStep : public testing::TestWithParam<DeathCase> {};

// No checkpoint is loaded, and none is missing at the end.
TEST_P(LastStep, IsGoneOnFromAfterADeath) {
  const DeathCase& death = GetParam();
  if (!is_drawn(death.name, death.one_in)) GTEST_SKIP() << "not drawn at this commit";
  const ScratchFolder marks;
  const std::string once = ",once=" + (marks.path() / "done").string();
  FaultRun run({.launch = {"--max-restarts", "1", "--keep-last-step"},
                .train = {"--checkpoint.interval=5"},
                .faults = {death.rule + once}});
  const auto result = run.expect_end(0, 60);
  EXPECT_NE(result.err.find("restart 1 of 1"), std::string::npos) << result.err;
  const std::string log = result.out + result.err;
  EXPECT_NE(log.find("Going on from step"), std::string::npos) << log;
  EXPECT_EQ(log.find("Loading the checkpoint"), std::string::npos) << log;
  for (const char* const step : {"step-5", "step-10", "step-12"})
    EXPECT_TRUE(path_exists(run.dump() / "checkpoint" / step / "manifest.json")) << step;
  run.expect_no_orphan();
  run.expect_same_losses();
}

INSTANTIATE_TEST_SUITE_P(
    Faults, LastStep,
    testing::Values(DeathCase{"killed_in_a_step", "rank=1,call=MPI_Isend,nth=150,do=kill", 1},
                    DeathCase{"segmentation_fault", "rank=0,call=MPI_Isend,nth=250,do=signal:11"},
                    DeathCase{"killed_in_a_save", "rank=1,call=fsync,path=step-10,do=kill", 2},
                    DeathCase{"killed_in_the_last_save", "rank=0,call=rename,path=step-12,do=kill"},
                    DeathCase{"stopped", "rank=1,call=MPI_Isend,nth=200,do=stop"}),
    [](const auto& death) { return death.param.name; });

struct FlipCase {
  const char* name;
  long nth;  ///< of the messages, which is flipped
};

class FlippedMessage : public testing::TestWithParam<FlipCase> {};

// A small message, one of many kilobytes, a hash.
TEST_P(FlippedMessage, IsNoticedWhereMessagesAreChecked) {
  if (!is_drawn(GetParam().name, 3)) GTEST_SKIP() << "not drawn at this commit";
  const ScratchFolder marks;
  ASSERT_EQ(setenv(kCheckMessagesVariable, "1", 1), 0);
  FaultRun run({.launch = {"--max-restarts", "1"},
                .faults = {fmt::format("rank=1,call=MPI_Isend,nth={},do=flip,once={}",
                                       GetParam().nth, (marks.path() / "done").string())}});
  const auto result = run.expect_end(0, 60);
  unsetenv(kCheckMessagesVariable);
  const bool is_named = result.err.find("were changed on their way") != std::string::npos ||
                        result.err.find("ranks differ in group") != std::string::npos;
  EXPECT_TRUE(is_named) << result.err;
  EXPECT_NE(result.err.find("restart 1 of 1"), std::string::npos) << result.err;
  run.expect_no_orphan();
  run.expect_same_losses();
}

INSTANTIATE_TEST_SUITE_P(Faults, FlippedMessage,
                         testing::Values(FlipCase{"early", 301}, FlipCase{"next", 302},
                                         FlipCase{"another", 303}),
                         [](const auto& flip) { return flip.param.name; });

struct DoubleCase {
  const char* name;
  Words rules;           ///< each gets a mark of its own; ",after=N" waits for that of rule N
  const char* restarts;  ///< how often the job starts again
  int one_in = 4;        ///< days on which CI draws it
};

class TwoFaults : public testing::TestWithParam<DoubleCase> {};

TEST_P(TwoFaults, AtOnceOrInTheRestartLoseNothing) {
  const DoubleCase& faults = GetParam();
  if (!is_drawn(faults.name, faults.one_in)) GTEST_SKIP() << "not drawn at this commit";
  const ScratchFolder marks;
  Words rules;
  for (std::string rule : faults.rules) {
    if (const auto at = rule.find("after="); at != std::string::npos)
      rule.insert(at + 6, marks.path().string() + "/");
    rules.push_back(fmt::format("{},once={}/{}", rule, marks.path().string(), rules.size()));
  }
  FaultRun run({.launch = {"--max-restarts", "3"}, .faults = rules});
  const auto result = run.expect_end(0, 60);
  for (size_t i = 0; i < rules.size(); ++i)
    EXPECT_TRUE(path_exists(marks.path() / std::to_string(i))) << rules[i] << " was not met";
  EXPECT_NE(result.err.find(fmt::format("restart {} of 3", faults.restarts)), std::string::npos)
      << result.err;
  run.expect_no_orphan();
  run.expect_same_losses();
}

INSTANTIATE_TEST_SUITE_P(
    Faults, TwoFaults,
    testing::Values(DoubleCase{"both_ranks_die",
                               {"rank=0,call=MPI_Isend,nth=150,do=kill",
                                "rank=1,call=MPI_Isend,nth=150,do=kill"},
                               "1"},
                    DoubleCase{"a_full_disk_and_a_death",
                               {"rank=0,call=write,path=step-8.tmp,do=errno:ENOSPC",
                                "rank=1,call=fsync,path=step-8.tmp,do=kill"},
                               "1",
                               2},
                    DoubleCase{"a_death_in_the_save_and_one_in_the_load",
                               {"rank=0,call=rename,path=step-8,do=kill",
                                "rank=1,call=open,path=step-4/shard,do=kill,after=0"},
                               "2",
                               2},
                    DoubleCase{"a_death_in_the_start_of_the_restart",
                               {"rank=1,call=MPI_Isend,nth=150,do=kill",
                                "rank=0,call=MPI_Init_thread,do=kill,after=0"},
                               "2"},
                    DoubleCase{"a_death_in_the_save_and_an_error_in_the_load",
                               {"rank=0,call=rename,path=step-8,do=kill",
                                "rank=1,call=open,path=step-4/shard,do=errno:EIO,after=0"},
                               "2"},
                    DoubleCase{"a_death_in_the_step_and_a_full_disk_later",
                               {"rank=0,call=MPI_Isend,nth=150,do=kill",
                                "rank=1,call=write,path=.safetensors,do=errno:ENOSPC,after=0"},
                               "1"}),
    [](const auto& faults) { return faults.param.name; });

struct ClockCase {
  const char* name;
  const char* rule;
  int one_in = 4;  ///< days on which CI draws it
};

class WallClock : public testing::TestWithParam<ClockCase> {};

// Limits are measured by the steady clock, and nothing is ordered by the hour.
TEST_P(WallClock, JumpsHarmNothing) {
  const ClockCase& jump = GetParam();
  if (!is_drawn(jump.name, jump.one_in)) GTEST_SKIP() << "not drawn at this commit";
  FaultRun run({.train = {"--metrics.enable_tensorboard", "--checkpoint.async_mode=async",
                          "--comm.train_timeout_seconds=8", "--comm.init_timeout_seconds=20"},
                .faults = {jump.rule}});
  const auto result = run.expect_end(0, 60);
  for (const Json& line : read_json_lines(run.dump() / "metrics.jsonl")) {
    for (const char* key : {"step_time_s", "data_s", "checkpoint_s", "tps"})
      EXPECT_GE(line.at(key).get<double>(), 0.0) << line;
  }
  run.expect_no_orphan();
  run.expect_same_losses();
}

INSTANTIATE_TEST_SUITE_P(
    Faults, WallClock,
    testing::Values(
        ClockCase{"one_rank_is_an_hour_ahead", "rank=1,do=clock:3600"},
        ClockCase{"jump_back_in_a_step", "call=MPI_Isend,nth=150,do=clock:-7200", 2},
        ClockCase{"jump_ahead_in_a_step", "rank=0,call=MPI_Isend,nth=150,do=clock:90000"},
        ClockCase{"jump_back_in_a_save", "rank=0,call=fsync,path=step-4,do=clock:-90000"},
        ClockCase{"of_the_launcher_is_a_day_behind", "in=launch,do=clock:-90000"}),
    [](const auto& jump) { return jump.param.name; });

// Whatever attempt it is, the job dies of its second checkpoint.
TEST(CrashLoop, EndsAfterThreeEndsAlike) {
  if (!is_drawn("crash_loop", 3)) GTEST_SKIP() << "not drawn at this commit";
  FaultRun run(
      {.launch = {"--max-restarts", "10"}, .faults = {"rank=0,call=rename,path=step-8,do=kill"}});
  const auto result = run.expect_end(76, 60);
  EXPECT_NE(result.err.find("3 times with exit code 137 after step 8"), std::string::npos)
      << result.err;
  EXPECT_NE(result.err.find("restart 2 of 10"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("restart 3 of 10"), std::string::npos) << result.err;
  EXPECT_TRUE(path_exists(run.dump() / "checkpoint/step-4/manifest.json"));
  run.expect_no_orphan();
}

}  // namespace
}  // namespace tokamak
