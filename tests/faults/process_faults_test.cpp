// Ranks that die at random places: the job ends at once, starts again and loses nothing.
#include <csignal>

#include <fmt/format.h>
#include <gtest/gtest.h>

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
  if (!is_drawn(death.name, death.one_in)) GTEST_SKIP() << "not drawn today";
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

// Whatever attempt it is, the job dies of its second checkpoint.
TEST(CrashLoop, EndsAfterThreeEndsAlike) {
  if (!is_drawn("crash_loop", 3)) GTEST_SKIP() << "not drawn today";
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
