// Ranks that get nowhere: stopped, in a loop, in a disk that does not answer. Each is noticed
// within ten seconds, and the job starts again and loses nothing.
#include <csignal>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/faults/fault_run.h"
#include "tests/fixtures/processes.h"

namespace tokamak {
namespace {

struct HangCase {
  const char* name;
  int num_ranks;
  Words rules;       ///< each gets a mark of its own, so that it holds for the first attempt only
  Words train;       ///< more overrides
  const char* says;  ///< on stderr
  int one_in = 4;    ///< days on which CI draws it
};

class RankHangs : public testing::TestWithParam<HangCase> {};

TEST_P(RankHangs, IsNoticedInTenSecondsAndTheJobStartsAgain) {
  const HangCase& hang = GetParam();
  if (!is_drawn(hang.name, hang.one_in)) GTEST_SKIP() << "not drawn at this commit";
  const ScratchFolder marks;
  Words rules;
  for (const std::string& rule : hang.rules)
    rules.push_back(fmt::format("{},once={}/{}", rule, marks.path().string(), rules.size()));
  FaultRun run({.num_ranks = hang.num_ranks,
                .launch = {"--max-restarts", "1"},
                .train = hang.train,
                .faults = rules});
  const auto is_hanging = [&] { return !std::filesystem::is_empty(marks.path()); };
  await(is_hanging, "the fault");
  const double start = run.seconds();
  const auto result = run.expect_end(0, start + 40);
  EXPECT_NE(result.err.find(hang.says), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("restart 1 of 1"), std::string::npos) << result.err;
  run.expect_no_orphan();
  run.expect_same_losses();
}

const Words kPatience{"--comm.train_timeout_seconds=6"};
const Words kDiskPatience{"--checkpoint.timeout_seconds=4"};
const Words kInBackground{"--checkpoint.async_mode=async"};

INSTANTIATE_TEST_SUITE_P(Faults, RankHangs,
                         testing::Values(HangCase{"one_rank_is_stopped",
                                                  2,
                                                  {"rank=1,call=MPI_Isend,nth=150,do=stop"},
                                                  {},
                                                  "was stopped (SIGSTOP) for"},
                                         HangCase{"all_ranks_are_stopped",
                                                  2,
                                                  {"rank=0,call=MPI_Isend,nth=150,do=stop",
                                                   "rank=1,call=MPI_Isend,nth=150,do=stop"},
                                                  {},
                                                  "was stopped (SIGSTOP) for"},
                                         HangCase{"a_lone_rank_is_stopped",
                                                  1,
                                                  {"call=write,path=metrics.jsonl,nth=6,do=stop"},
                                                  {},
                                                  "was stopped (SIGSTOP) for"},
                                         HangCase{"a_lone_rank_hangs_in_fsync",
                                                  1,
                                                  {"call=fsync,path=.safetensors,do=hang"},
                                                  kDiskPatience,
                                                  "shard-00000.safetensors has not returned for"},
                                         HangCase{"all_ranks_hang_in_fsync",
                                                  2,
                                                  {"rank=0,call=fsync,path=.safetensors,do=hang",
                                                   "rank=1,call=fsync,path=.safetensors,do=hang"},
                                                  kDiskPatience,
                                                  "fsync of "},
                                         HangCase{"an_fsync_hangs_beside_a_collective",
                                                  2,
                                                  {"rank=1,call=fsync,path=.safetensors,do=hang"},
                                                  kDiskPatience,
                                                  "shard-00001.safetensors has not returned for",
                                                  2},
                                         HangCase{"a_write_hangs_in_the_background",
                                                  2,
                                                  {"rank=1,call=write,path=.safetensors,do=hang"},
                                                  kDiskPatience + kInBackground,
                                                  "shard-00001.safetensors has not returned for"},
                                         HangCase{"the_commit_hangs",
                                                  2,
                                                  {"rank=0,call=fsync,path=manifest,do=hang"},
                                                  kDiskPatience,
                                                  "manifest.json has not returned for"},
                                         HangCase{"a_loop_in_a_collective",
                                                  2,
                                                  {"rank=1,call=MPI_Isend,nth=150,do=spin"},
                                                  kPatience,
                                                  "rank 0 waits for rank 1"},
                                         HangCase{"in_mpi_init",
                                                  2,
                                                  {"rank=1,call=MPI_Init_thread,do=hang"},
                                                  {"--comm.init_timeout_seconds=4"},
                                                  "MPI_Init has not returned"},
                                         HangCase{"in_mpi_finalize",
                                                  2,
                                                  {"rank=1,call=MPI_Finalize,do=hang"},
                                                  {"--comm.init_timeout_seconds=6"},
                                                  "MPI_Finalize has not returned"}),
                         [](const auto& hang) { return hang.param.name; });

TEST(Mpirun, IsKilledWhereItIsStopped) {
  if (!is_drawn("mpirun_is_stopped", 4)) GTEST_SKIP() << "not drawn at this commit";
  FaultRun run({.launch = {"--max-restarts", "1"}});
  await([&] { return steps_logged(run.dump()) >= 3; }, "three steps");
  for (const Process& process : processes_with(run.dump())) {
    if (process.words.find("--oversubscribe") != std::string::npos) kill(process.id, SIGSTOP);
  }
  const auto result = run.expect_end(0, run.seconds() + 40);
  run.expect_no_orphan();
  run.expect_same_losses();
}

}  // namespace
}  // namespace tokamak
