// Disks that are full, fail or lose bytes: training goes on, loses nothing, and never reads what is
// damaged.
#include <csignal>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/checkpoint/checkpoint_folder.h"
#include "tokamak/checkpoint/checkpoint_reader.h"
#include "tokamak/checkpoint/manifest.h"
#include "tokamak/core/file.h"

#include "tests/faults/fault_run.h"
#include "tests/fixtures/processes.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

const Words kAtOnce{"--checkpoint.retry_seconds=0"};
const Words kInBackground{"--checkpoint.retry_seconds=0",
                          "--checkpoint.async_mode=async_with_pinned_mem"};

void expect_whole(const fs::path& step) {
  EXPECT_NO_THROW(CheckpointReader(step).verify()) << step;
}

std::vector<int64_t> steps_in(const fs::path& dump) {
  std::vector<int64_t> steps;
  for (const CheckpointEntry& entry : list_checkpoints(dump / "checkpoint")) {
    EXPECT_TRUE(entry.problem.empty()) << entry.problem;
    steps.push_back(entry.step);
  }
  return steps;
}

void expect_nothing_half_done(const fs::path& dump) {
  for (const fs::path& path : list_folder(dump / "checkpoint"))
    EXPECT_EQ(path.string().find(".tmp"), std::string::npos) << path;
}

struct SaveCase {
  const char* name;
  const char* rule;
  bool in_background = false;
  int one_in = 4;  ///< days on which CI draws it
};

class SaveFails : public testing::TestWithParam<SaveCase> {};

TEST_P(SaveFails, TrainingGoesOnAndTheSaveIsTriedAgain) {
  const SaveCase& fault = GetParam();
  if (!is_drawn(fault.name, fault.one_in)) GTEST_SKIP() << "not drawn at this commit";
  FaultRun run({.train = fault.in_background ? kInBackground : kAtOnce, .faults = {fault.rule}});
  const auto result = run.expect_end(0, 60);
  EXPECT_NE(result.out.find("could not be saved (1 of 3 failures in a row)"), std::string::npos)
      << result.out;
  EXPECT_EQ(steps_in(run.dump()).back(), 12);
  for (const int64_t step : steps_in(run.dump()))
    expect_whole(run.dump() / fmt::format("checkpoint/step-{}", step));
  // In the background a save may be left out because the one before is still being written.
  EXPECT_GE(steps_in(run.dump()).size(), fault.in_background ? 1U : 3U);
  const auto lines = read_json_lines(run.dump() / "metrics.jsonl");
  const auto failing = std::count_if(lines.begin(), lines.end(), [](const Json& line) {
    return line.at("failed_saves").get<int>() > 0;
  });
  EXPECT_TRUE(fault.in_background || failing > 0);
  if (!fault.in_background) {
    EXPECT_EQ(lines.back().at("failed_saves"), 0);
  }
  expect_nothing_half_done(run.dump());
  run.expect_no_orphan();
  run.expect_same_losses();
}

INSTANTIATE_TEST_SUITE_P(
    Faults, SaveFails,
    testing::Values(
        SaveCase{"disk_full", "rank=1,call=write,path=shard-0000,do=errno:ENOSPC", false, 1},
        SaveCase{"disk_full_in_background", "rank=1,call=write,path=shard-0000,do=errno:ENOSPC",
                 true, 1},
        SaveCase{"io_error_at_fsync", "rank=0,call=fsync,path=shard-0000,do=errno:EIO", true},
        SaveCase{"read_only", "rank=1,call=open,path=shard-0000,do=errno:EROFS"},
        SaveCase{"stale", "rank=0,call=open,path=shard-0000,times=2,do=errno:ESTALE"},
        SaveCase{"no_descriptors", "rank=0,call=open,path=manifest,do=errno:EMFILE"},
        SaveCase{"no_memory", "rank=1,call=open,path=shard-0000,do=errno:ENOMEM", true},
        SaveCase{"no_folder", "call=mkdir,path=step-4,do=errno:ENOSPC"},
        SaveCase{"no_name", "rank=0,call=rename,path=checkpoint/step-4,do=errno:EIO", true}),
    [](const auto& fault) { return fault.param.name; });

TEST(StorageFaults, ADiskThatStaysFullEndsTheRunInOrder) {
  const FaultyJob job{.train = kAtOnce,
                      .faults = {"rank=1,call=write,path=shard-0000,nth=2,times=0,"
                                 "do=errno:ENOSPC"}};
  FaultRun run(job);
  const auto result = run.expect_end(75, 60);
  EXPECT_NE(result.err.find("checkpoint.max_failed_saves = 3"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("No space left on device"), std::string::npos) << result.err;
  run.expect_no_orphan();
  EXPECT_EQ(steps_in(run.dump()), std::vector<int64_t>{4});
  expect_nothing_half_done(run.dump());
  // Once there is room, the run goes on and has lost nothing.
  const ProgramResult again = run_program(words_of({.train = kAtOnce}, run.dump()));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  run.expect_same_losses();
}

TEST(StorageFaults, AFullDiskIsClearedOfWhatThePolicyCanSpare) {
  FaultRun run({.train = kAtOnce + Words{"--checkpoint.interval=2"},
                .faults = {"rank=0,call=write,path=shard-0000,nth=5,do=errno:ENOSPC"}});
  const auto result = run.expect_end(0, 60);
  EXPECT_NE(result.out.find("step-2 to make room"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("step-4 to make room"), std::string::npos) << result.out;
  EXPECT_EQ(steps_in(run.dump()), (std::vector<int64_t>{6, 8, 11, 12}));
  run.expect_no_orphan();
  run.expect_same_losses();
}

TEST(StorageFaults, AnExportMayTakeLongerThanRanksWaitForEachOther) {
  FaultRun run({.train = {"--checkpoint.last_save_in_hf", "--checkpoint.last_save_model_only",
                          "--comm.init_timeout_seconds=3", "--comm.train_timeout_seconds=3"},
                .faults = {"rank=0,call=fsync,path=model.safetensors,do=sleep:7"}});
  const auto result = run.expect_end(0, 60);
  EXPECT_NE(result.out.find("Saved the Hugging Face folder"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("could not be saved"), std::string::npos) << result.out;
  run.expect_no_orphan();
}

TEST(StorageFaults, ASlowDiskOfOneRankEndsNoSave) {
  for (const char* mode : {"disabled", "async_with_pinned_mem"}) {
    if (!is_drawn(fmt::format("slow_rank_{}", mode), 4)) continue;
    FaultRun run({.train = {fmt::format("--checkpoint.async_mode={}", mode),
                            "--comm.init_timeout_seconds=3", "--comm.train_timeout_seconds=3"},
                  .faults = {"rank=1,call=fsync,path=shard-0000,nth=3,do=sleep:6"}});
    const auto result = run.expect_end(0, 60);
    EXPECT_EQ(result.out.find("could not be saved"), std::string::npos) << result.out;
    run.expect_no_orphan();
  }
}

// The position of the data lies far in a text of which no tokens are there.
TEST(StorageFaults, RanksWaitWhileAnotherProcessTokenizes) {
  if (!is_drawn("tokenizing", 3)) GTEST_SKIP() << "not drawn at this commit";
  FaultyJob job{.train = {"--training.dataset=text", "--training.steps=4"}};
  const ScratchFolder scratch;
  const std::string text = scratch.path() / "text.txt";
  {
    FileWriter file(text);
    for (int i = 0; i < 60000; ++i) file.write(fmt::format("line {} of a text\n\n", i * 7919));
  }
  job.train.push_back("--training.dataset_path=" + text);
  job.train.push_back("--model.tokenizer_path=bytes");
  const fs::path dump = scratch.path() / "run";
  const auto run = [&](const Words& more) {
    FaultyJob with = job;
    with.train = with.train + more;
    Words words = words_of(with, dump);
    words.insert(words.begin() + 1, "XDG_CACHE_HOME=" + (scratch.path() / "cache").string());
    return run_program(words);
  };
  auto result = run({});
  ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
  fs::remove_all(scratch.path() / "cache");
  const fs::path manifest = dump / "checkpoint/step-4/manifest.json";
  std::string changed = read_file(manifest);
  const std::string before = "\\\"window\\\":16";
  const size_t at = changed.find(before);
  ASSERT_NE(at, std::string::npos) << changed;
  changed.replace(at, before.size(), "\\\"window\\\":80000");
  write_file_atomic(manifest, sealed(changed));
  job.faults = {"call=write,path=tokens.u16,times=0,do=sleep:2"};
  result = run({"--training.steps=5", "--comm.train_timeout_seconds=3"});
  EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
  EXPECT_NE(result.out.find("Training completed"), std::string::npos) << result.out;
}

TEST(StorageFaults, ASlowCommitHoldsNoStep) {
  const ScratchFolder marks;
  const std::string mark = (marks.path() / "commits").string();
  FaultRun run(
      {.train = {"--checkpoint.async_mode=async", "--training.steps=1000000",
                 "--checkpoint.interval=1000000", "--checkpoint.enable_first_step_checkpoint"},
       .faults = {"rank=0,call=fsync,path=manifest,do=sleep:5,once=" + mark}});
  await([&] { return path_exists(mark); }, "the commit");
  const int64_t steps = steps_logged(run.dump());
  await([&] { return steps_logged(run.dump()) > steps + 10; }, "ten steps");
  EXPECT_FALSE(path_exists(run.dump() / "checkpoint/step-1"));
  await([&] { return path_exists(run.dump() / "checkpoint/step-1"); }, "the end of the save");
  run.program().send(SIGTERM);
  run.expect_end(85, run.seconds() + 30);
  expect_whole(run.dump() / "checkpoint/step-1");
  run.expect_no_orphan();
}

TEST(StorageFaults, MetricsThatCannotBeWrittenComeLater) {
  FaultRun run({.faults = {"rank=0,call=write,path=metrics.jsonl,nth=3,times=4,do=errno:EIO"}});
  const auto result = run.expect_end(0, 60);
  EXPECT_NE(result.out.find("Metrics cannot be written, training continues"), std::string::npos);
  EXPECT_NE(result.out.find("Metrics are written again"), std::string::npos);
  EXPECT_EQ(steps_logged(run.dump()), 12);
  run.expect_no_orphan();
  run.expect_same_losses();
}

void flip(const fs::path& path, int64_t from_end) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-from_end, std::ios::end);
  const int value = file.get();
  file.seekp(-from_end, std::ios::end);
  file.put(static_cast<char>(value ^ 1));
}

TEST(StorageFaults, RanksGoBackTogetherToTheNewestWholeCheckpoint) {
  FaultyJob job;
  FaultRun run(job);
  run.expect_end(0, 60);
  const fs::path saved = run.dump() / "checkpoint";
  flip(saved / "step-12/shard-00001.safetensors", 3);
  fs::resize_file(saved / "step-8/shard-00000.safetensors",
                  fs::file_size(saved / "step-8/shard-00000.safetensors") - 1);
  const ProgramResult again = run_program(words_of(job, run.dump()));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.out.find("already completed"), std::string::npos) << again.out;
  EXPECT_NE(again.out.find("step-12/shard-00001.safetensors: damaged: the hash"), std::string::npos)
      << again.out;
  EXPECT_NE(again.out.find("is wrong (\"model.embed_tokens.weight\" and"), std::string::npos)
      << again.out;
  EXPECT_NE(again.out.find("step-8/shard-00000.safetensors: damaged"), std::string::npos);
  EXPECT_NE(again.out.find("Training starts at step 5"), std::string::npos) << again.out;
  for (const int64_t step : {4, 8, 12}) expect_whole(saved / fmt::format("step-{}", step));
  run.expect_same_losses();
}

TEST(StorageFaults, ASecondRunInTheFolderIsRefused) {
  const FaultyJob job{.train = {"--training.steps=4000"}};
  FaultRun run(job);
  await([&] { return steps_logged(run.dump()) > 2; }, "the first steps");
  const ProgramResult second = run_program(words_of(job, run.dump()));
  EXPECT_EQ(second.exit_code, 2) << second.err;
  EXPECT_NE(second.err.find("writes there; end that run"), std::string::npos) << second.err;
  run.program().send(SIGTERM);
  run.program().wait();
  run.expect_no_orphan();
}

// A run of one process, without a launcher.
Words lone(const FaultyJob& job, const fs::path& dump) {
  const Words words = words_of(job, dump);
  const auto launcher = std::find(words.begin(), words.end(), "launch");
  const auto train = std::find(launcher, words.end(), "train");
  return Words(words.begin(), launcher) + Words(train, words.end());
}

// A rank that is stopped while another takes its place must not touch what that one writes.
TEST(StorageFaults, AZombieIsSupersededAndTouchesNothing) {
  const ScratchFolder scratch;
  const auto started = [&](int restart, const std::string& fault) {
    const Words words =
        lone({.train = {"--metrics.log_freq=1"}, .faults = {fault}}, scratch.path());
    return Words{"env", "TOKAMAK_JOB=test", fmt::format("TOKAMAK_RESTART={}", restart)} + words;
  };
  RunningProgram zombie(started(0, "call=write,path=metrics.jsonl,nth=6,do=stop"));
  const auto is_stopped = [&] {
    for (const Process& p : processes_with(scratch.path())) {
      std::ifstream stat(fmt::format("/proc/{}/stat", p.id));
      std::string text;
      std::getline(stat, text);
      if (text.find(") T ") != std::string::npos) return true;
    }
    return false;
  };
  await(is_stopped, "the run to be stopped");
  const auto stopped = processes_with(scratch.path());
  ASSERT_EQ(stopped.size(), 1U);
  const ProgramResult successor = run_program(started(1, ""));
  EXPECT_EQ(successor.exit_code, 0) << successor.err;
  const std::string metrics = read_file(scratch.path() / "metrics.jsonl");
  ::kill(stopped[0].id, SIGCONT);
  const ProgramResult woken = zombie.wait();
  EXPECT_EQ(woken.exit_code, 2) << woken.err << woken.out;
  EXPECT_NE(woken.err.find("superseded"), std::string::npos) << woken.err;
  EXPECT_EQ(timeless_metrics(scratch.path()).size(), 12U);
  for (const int64_t step : {4, 8, 12})
    expect_whole(scratch.path() / fmt::format("checkpoint/step-{}", step));
  expect_nothing_half_done(scratch.path());
}

// The disk is slow, and the signal comes twice while the last checkpoint is written.
TEST(StorageFaults, ASignalWhileTheLastCheckpointIsWrittenDoesNotLoseIt) {
  const ScratchFolder scratch;
  RunningProgram run(lone(
      {.train = kInBackground + Words{"--training.steps=100000", "--checkpoint.interval=50000"},
       .faults = {"call=fsync,path=shard-0000,times=0,do=sleep:2"}},
      scratch.path()));
  await([&] { return steps_logged(scratch.path()) > 6; }, "the first steps");
  run.send(SIGTERM);
  await([&] { return is_saving(scratch.path()); }, "the save");
  run.send(SIGTERM);
  const ProgramResult result = run.wait();
  const auto steps = steps_in(scratch.path());
  EXPECT_EQ(steps.back(), steps_logged(scratch.path())) << result.out << result.err;
  expect_whole(scratch.path() / fmt::format("checkpoint/step-{}", steps.back()));
  EXPECT_TRUE(processes_with(scratch.path()).empty());
}

}  // namespace
}  // namespace tokamak
