// Signals to any part of a job, at any time: no request is lost, nothing is left behind.
#include <csignal>
#include <filesystem>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"
#include "tokamak/train/run_signals.h"

#include "tests/faults/fault_run.h"
#include "tests/fixtures/draw.h"
#include "tests/fixtures/processes.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

/// More steps than any machine finishes within a test.
const Words kForEver{"--training.steps=1000000", "--checkpoint.interval=1000000"};

void send_to_all(const FaultRun& run, int signal) {
  for (const Process& process : processes_with(run.dump())) kill(process.id, signal);
}

void expect_last_step_saved(const FaultRun& run) {
  const auto manifest = fmt::format("checkpoint/step-{}/manifest.json", steps_logged(run.dump()));
  EXPECT_TRUE(path_exists(run.dump() / manifest)) << manifest;
}

bool is_launching(const FaultRun& run) {
  for (const Process& process : processes_with(run.dump())) {
    if (process.words.rfind(TOK_PROGRAM, 0) == 0) return true;
  }
  return false;
}

// The launcher, mpirun and the ranks get it in any of their first moments.
TEST(Signal, InTheFirstSecondIsNotLost) {
  const int num_tries = is_drawn("all_moments", 1 << 30) ? 60 : 4;
  for (int i = 0; i < num_tries; ++i) {
    Draw draw(fault_seed(), static_cast<uint64_t>(i));
    const int num_ranks = 1 + i % 2;
    // The launcher, a watcher and a process for each rank, and mpirun where there are two.
    const auto num_processes = static_cast<size_t>(1 + draw.below(num_ranks == 1 ? 3 : 6));
    const int step = draw.below(2);
    FaultRun run({.num_ranks = num_ranks, .train = kForEver});
    await([&] { return is_launching(run); }, "the launcher");
    await([&] { return processes_with(run.dump()).size() >= num_processes; }, "the processes");
    if (num_processes > 1) await([&] { return steps_logged(run.dump()) >= step; }, "the step");
    run.program().send(SIGTERM);
    const auto result = run.program().wait();
    // Before main() of the launcher has begun, the signal still ends it.
    const bool is_early = result.exit_code == 128 + SIGTERM && num_processes == 1;
    const std::string moment = fmt::format("{} processes, step {}", num_processes, step);
    EXPECT_TRUE(result.exit_code == kExitStopped || is_early)
        << moment << ": " << result.exit_code << result.err;
    EXPECT_LT(run.seconds(), 30) << moment;
    run.expect_no_orphan();
    if (steps_logged(run.dump()) > 0) expect_last_step_saved(run);
  }
}

class SignalToAll : public testing::TestWithParam<std::pair<const char*, int>> {};

// As systemd and scancel do it.
TEST_P(SignalToAll, SavesTheLastStep) {
  if (!is_drawn(GetParam().first, 2)) GTEST_SKIP() << "not drawn at this commit";
  FaultRun run({.train = kForEver});
  await([&] { return steps_logged(run.dump()) >= 3; }, "three steps");
  send_to_all(run, GetParam().second);
  run.expect_end(kExitStopped, run.seconds() + 30);
  run.expect_no_orphan();
  expect_last_step_saved(run);
}

INSTANTIATE_TEST_SUITE_P(Faults, SignalToAll,
                         testing::Values(std::pair{"terminate", SIGTERM},
                                         std::pair{"hang_up", SIGHUP}),
                         [](const auto& signal) { return signal.param.first; });

int num_checkpoints(const FaultRun& run) {
  const auto folder = run.dump() / "checkpoint";
  if (!path_exists(folder)) return 0;
  int num = 0;
  for (const fs::path& path : list_folder(folder)) {
    if (path_exists(path / "manifest.json")) ++num;
  }
  return num;
}

TEST(Signal, User1SavesAndGoesOn) {
  FaultRun run({.train = kForEver});
  await([&] { return steps_logged(run.dump()) >= 3; }, "three steps");
  run.program().send(SIGUSR1);
  await([&] { return num_checkpoints(run) > 0; }, "a checkpoint");
  const auto steps = steps_logged(run.dump());
  await([&] { return steps_logged(run.dump()) > steps; }, "a further step");
  send_to_all(run, SIGUSR1);
  run.program().send(SIGTERM);
  run.expect_end(kExitStopped, run.seconds() + 30);
  run.expect_no_orphan();
}

struct User1Case {
  const char* name;
  Words train;
  Words faults;
  int64_t steps;        ///< are done before it is sent
  int num_checkpoints;  ///< that there are in the end
  int one_in = 2;       ///< commits at which CI draws it
};

class User1 : public testing::TestWithParam<User1Case> {};

// One request is one checkpoint, whatever four ranks do when it comes.
TEST_P(User1, IsHeardByFourRanks) {
  const User1Case& at = GetParam();
  if (!is_drawn(at.name, at.one_in)) GTEST_SKIP() << "not drawn at this commit";
  FaultRun run({.num_ranks = 4, .train = kForEver + at.train, .faults = at.faults});
  await([&] { return is_launching(run); }, "the launcher");
  await([&] { return training_processes(run.dump()).size() == 4; }, "four ranks");
  await([&] { return steps_logged(run.dump()) >= at.steps; }, "the steps");
  run.program().send(SIGUSR1);
  await([&] { return num_checkpoints(run) >= at.num_checkpoints; }, "the checkpoints", 30);
  const auto steps = steps_logged(run.dump());
  await([&] { return steps_logged(run.dump()) > steps + 2; }, "further steps");
  EXPECT_EQ(num_checkpoints(run), at.num_checkpoints);
  run.program().send(SIGTERM);
  const auto result = run.expect_end(kExitStopped, run.seconds() + 30);
  EXPECT_NE(result.out.find("Asked by SIGUSR1 to save"), std::string::npos) << result.out;
  run.expect_no_orphan();
}

INSTANTIATE_TEST_SUITE_P(
    Faults, User1,
    testing::Values(User1Case{"while_they_start", {}, {"call=MPI_Init_thread,do=sleep:1"}, 0, 1},
                    User1Case{"in_a_step", {}, {"rank=2,call=MPI_Isend,nth=200,do=sleep:1"}, 2, 1},
                    User1Case{"while_a_save_is_written",
                              {"--checkpoint.async_mode=async",
                               "--checkpoint.enable_first_step_checkpoint"},
                              {"rank=3,call=write,path=step-1.tmp,do=sleep:2"},
                              2,
                              2},
                    User1Case{"while_they_validate",
                              {"--validation.enable", "--validation.freq=1", "--validation.steps=1",
                               "--validation.dataset=synthetic"},
                              {},
                              2,
                              1}),
    [](const auto& at) { return at.param.name; });

// A request to save is over with the attempt that heard it; the next mpirun would die of it.
TEST(Signal, User1DoesNotEndARestart) {
  const ScratchFolder marks;
  const std::string once = ",once=" + (marks.path() / "died").string();
  FaultRun run({.launch = {"--max-restarts", "1"},
                .train = {"--training.steps=400", "--checkpoint.interval=1000"},
                .faults = {"rank=1,call=write,path=.safetensors,do=kill" + once}});
  await([&] { return steps_logged(run.dump()) >= 3; }, "three steps");
  run.program().send(SIGUSR1);
  const auto result = run.expect_end(0, 60);
  EXPECT_NE(result.err.find("restart 1 of 1"), std::string::npos) << result.err;
  run.expect_no_orphan();
  run.expect_same_losses();
}

TEST(Signal, TheSecondKillsTheJob) {
  FaultRun run(
      {.train = kForEver, .faults = {"rank=1,call=write,path=.safetensors,do=sleep:3600"}});
  await([&] { return steps_logged(run.dump()) >= 3; }, "three steps");
  run.program().send(SIGTERM);
  await([&] { return is_saving(run.dump()); }, "the save");
  run.program().send(SIGTERM);
  run.expect_end(128 + SIGTERM, run.seconds() + 10);
  run.expect_no_orphan();
}

// A request that comes while the last checkpoint is still being written.
TEST(Signal, DuringTheLastSaveLosesNothing) {
  const ScratchFolder marks;
  const std::string mark = (marks.path() / "writing").string();
  FaultRun run({.train = {"--checkpoint.async_mode=async", "--checkpoint.interval=100"},
                .faults = {"rank=1,call=write,path=.safetensors,do=sleep:2,once=" + mark}});
  await([&] { return path_exists(mark); }, "the last save");
  run.program().send(SIGTERM);
  run.expect_end(0, run.seconds() + 30);
  EXPECT_TRUE(path_exists(run.dump() / "checkpoint/step-12/manifest.json"));
  run.expect_no_orphan();
  run.expect_same_losses();
}

/// The folder of a running job, which is among the words of its watchers.
fs::path job_folder(const FaultRun& run) {
  for (const Process& process : processes_with(run.dump())) {
    const std::string verb = std::string("launch-rank") + '\0';
    const auto at = process.words.find(verb);
    if (at != std::string::npos) return process.words.substr(at + verb.size()).c_str();
  }
  return {};
}

TEST(Housekeeping, TheNextStartRemovesWhatAKilledLauncherLeft) {
  const ScratchFolder temporary;
  ASSERT_EQ(setenv("TMPDIR", temporary.path().c_str(), 1), 0);
  fs::path left;
  {
    FaultRun run({.train = kForEver});
    await([&] { return steps_logged(run.dump()) >= 3; }, "three steps");
    left = job_folder(run);
    run.program().send(SIGKILL);
    run.program().wait();
    run.expect_no_orphan();
  }
  ASSERT_FALSE(left.empty());
  EXPECT_TRUE(path_exists(left));
  fs::create_directory(temporary.path() / "tokamak-launch-old");
  FaultRun next({});
  next.expect_end(0, 60);
  EXPECT_FALSE(path_exists(left));
  EXPECT_FALSE(path_exists(temporary.path() / "tokamak-launch-old"));
  unsetenv("TMPDIR");
}

}  // namespace
}  // namespace tokamak
