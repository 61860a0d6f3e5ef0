// A run applies load_step and exclude_from_loading once; restarts and rollbacks continue from its
// own checkpoints.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/checkpoint/checkpoint_folder.h"
#include "tokamak/checkpoint/test_tensors.h"

#include "tests/fixtures/guarded_run.h"
#include "tests/fixtures/state_bits.h"

namespace tokamak {
namespace {

using testing::ScratchFolder;
using testing::write_text;

// Runs to `steps` of a folder, each with a checkpoint every second step.
struct LineageRuns {
  explicit LineageRuns(const fs::path& where) : dump(where), config(GuardedRun(where).config) {
    config.checkpoint.keep_latest_k = 0;
  }

  /// Returns the log.
  std::string train_to(int64_t steps, const std::function<void(GuardedRun&)>& change = {}) {
    GuardedRun run(dump);
    run.config = config;
    run.config.training.steps = steps;
    if (change) change(run);
    run.run();
    return run.log;
  }

  /// Returns runs that go on in a copy of the folder.
  LineageRuns copied_to(const fs::path& where) const {
    LineageRuns twin(where);
    twin.config = config;
    twin.config.job.dump_folder = where.string();
    fs::copy(dump, where, fs::copy_options::recursive);
    return twin;
  }

  fs::path folder() const { return dump / "checkpoint"; }

  std::string steps_in(const fs::path& of) const {
    std::string text;
    for (const CheckpointEntry& entry : list_checkpoints(of))
      text += fmt::format("{}{}", text.empty() ? "" : " ", entry.step);
    return text;
  }

  fs::path dump;
  Config config;
};

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Lineage, AStepIsLoadedOnceAndWhatIsNewerIsMovedAside) {
  const ScratchFolder scratch;
  LineageRuns clean(scratch.path() / "clean");
  clean.train_to(10);
  LineageRuns runs(scratch.path() / "runs");
  runs.train_to(8);
  runs.config.checkpoint.load_step = 4;
  const std::string first = runs.train_to(6);
  EXPECT_TRUE(holds(first, "Loading the checkpoint " + (runs.folder() / "step-4").string()));
  EXPECT_TRUE(holds(first, "Moved step-6, step-8, a branch that this run leaves, to " +
                               (runs.folder() / "aside-1").string()))
      << first;
  EXPECT_EQ(runs.steps_in(runs.folder()), "2 4 6");
  EXPECT_EQ(runs.steps_in(runs.folder() / "aside-1"), "6 8");
  EXPECT_TRUE(path_exists(runs.folder() / "aside-1" / "config.json"));
  const std::string second = runs.train_to(8);
  EXPECT_TRUE(holds(second, "checkpoint.load_step = 4: done when this run began")) << second;
  EXPECT_TRUE(holds(second, "Training starts at step 7")) << second;
  EXPECT_TRUE(holds(runs.train_to(8), "Training already completed: step 8"));
  runs.config.checkpoint.load_step = -1;
  EXPECT_TRUE(holds(runs.train_to(10), "Training starts at step 9"));
  EXPECT_EQ(runs.steps_in(runs.folder()), "2 4 6 8 10");
  EXPECT_EQ(state_after(10, runs.dump), state_after(10, clean.dump));
  runs.config.checkpoint.load_step = 2;
  runs.train_to(4);
  EXPECT_EQ(runs.steps_in(runs.folder()), "2 4");
  EXPECT_EQ(runs.steps_in(runs.folder() / "aside-2"), "4 6 8 10");
}

TEST(Lineage, AnExportedModelTellsThatTheStepWasLoaded) {
  const ScratchFolder scratch;
  LineageRuns runs(scratch.path() / "runs");
  runs.train_to(4);
  runs.config.checkpoint.load_step = 2;
  runs.config.checkpoint.interval = 100;
  runs.config.checkpoint.last_save_model_only = true;
  runs.config.checkpoint.last_save_in_hf = true;
  runs.train_to(5);
  EXPECT_EQ(runs.steps_in(runs.folder()), "2 5");
  EXPECT_TRUE(holds(runs.train_to(5), "Training already completed: step 5"));
}

TEST(Lineage, AStepThatWasLoadedMayBeGone) {
  const ScratchFolder scratch;
  LineageRuns runs(scratch.path() / "runs");
  runs.config.checkpoint.keep_latest_k = 2;
  runs.train_to(6);
  runs.config.checkpoint.load_step = 4;
  runs.train_to(10);
  EXPECT_EQ(runs.steps_in(runs.folder()), "8 10");
  EXPECT_TRUE(holds(runs.train_to(12), "Training starts at step 11"));
  // A run that dies before its first checkpoint begins as it did.
  runs.config.checkpoint.load_step = 10;
  for (int i = 0; i < 2; ++i) {
    EXPECT_ANY_THROW(runs.train_to(12, [](GuardedRun& run) {
      run.before_step = [](int, int64_t, const StateAccess&, float&, int&) { throw Error("dies"); };
    }));
    EXPECT_EQ(runs.steps_in(runs.folder()), "10");
  }
}

TEST(Lineage, PartsAreLeftOutOnce) {
  for (const std::string part :
       {"model", "optimizer", "lr_scheduler", "dataloader", "train_state"}) {
    SCOPED_TRACE(part);
    const ScratchFolder scratch;
    LineageRuns runs(scratch.path() / "runs");
    runs.train_to(4);
    runs.config.checkpoint.exclude_from_loading = {part};
    LineageRuns whole = runs.copied_to(scratch.path() / "whole");
    whole.train_to(10);
    const int64_t begun_at = part == "train_state" ? 0 : 4;
    for (const int64_t steps : {6, 8, 10}) {
      const std::string log = runs.train_to(steps);
      const int64_t begins = steps == 6 ? begun_at : steps - 2;
      EXPECT_TRUE(holds(log, fmt::format("Training starts at step {}", begins + 1))) << log;
    }
    EXPECT_EQ(state_after(10, runs.dump), state_after(10, whole.dump));
    EXPECT_EQ(CheckpointReader(checkpoint_of(10, runs.dump)).section("loader"),
              CheckpointReader(checkpoint_of(10, whole.dump)).section("loader"));
    if (part == "train_state") {
      EXPECT_EQ(runs.steps_in(runs.folder()), "0 2 4 6 8 10");
      EXPECT_EQ(runs.steps_in(runs.folder() / "aside-1"), "2 4");
    }
  }
}

// Before its first checkpoint a run goes back to what it began from, without the parts that it had
// left out, and later to its own.
TEST(Lineage, ARollbackGoesOnFromTheRunsOwnCheckpoints) {
  for (const std::string part :
       {"model", "optimizer", "lr_scheduler", "dataloader", "train_state"}) {
    for (const int64_t bad : {1, 3}) {
      SCOPED_TRACE(fmt::format("{} {}", part, bad));
      const ScratchFolder scratch;
      LineageRuns runs(scratch.path() / "runs");
      runs.train_to(6);
      runs.config.checkpoint.load_step = 4;
      runs.config.checkpoint.exclude_from_loading = {part};
      runs.config.training.on_nonfinite = "rollback";
      LineageRuns clean = runs.copied_to(scratch.path() / "clean");
      const int64_t begun_at = part == "train_state" ? 0 : 4;
      const int64_t steps = begun_at + 4;
      clean.train_to(steps);
      const std::string log =
          runs.train_to(steps, [&](GuardedRun& run) { run.damage(begun_at + bad, kNaN, false); });
      EXPECT_TRUE(holds(log, "going back to the last checkpoint")) << log;
      EXPECT_EQ(state_after(steps, runs.dump), state_after(steps, clean.dump));
    }
  }
}

// Another run may write where this one only reads.
TEST(Lineage, ARunThatOnlyLoadsGoesBackToWhereItBegan) {
  const ScratchFolder scratch;
  LineageRuns runs(scratch.path() / "runs");
  runs.train_to(4);
  LineageRuns other = runs.copied_to(scratch.path() / "other");
  other.train_to(6);
  runs.config.checkpoint.load_only = true;
  runs.config.training.on_nonfinite = "rollback";
  const std::string log = runs.train_to(7, [&](GuardedRun& run) {
    run.damage(5, kNaN, false);
    run.before_step = [&, damage = run.before_step](int rank, int64_t step,
                                                    const StateAccess& access, float& kept,
                                                    int& tries) {
      const auto to = checkpoint_of(6, runs.dump);
      if (!path_exists(to)) fs::copy(checkpoint_of(6, other.dump), to, fs::copy_options::recursive);
      damage(rank, step, access, kept, tries);
    };
  });
  EXPECT_TRUE(holds(log, "going back to the last checkpoint")) << log;
  EXPECT_FALSE(holds(log, (runs.folder() / "step-6").string())) << log;
  EXPECT_EQ(runs.steps_in(runs.folder()), "2 4 6");
}

// A run without checkpoints leaves one when it is stopped, where an earlier one may have too.
TEST(Lineage, AStoppedRunSupersedesALaterStepOfAnotherRun) {
  const ScratchFolder scratch;
  LineageRuns runs(scratch.path() / "runs");
  runs.config.checkpoint.enable = false;
  const auto stop_after = [&](int64_t steps) {
    return runs.train_to(8, [&](GuardedRun& run) { run.stop_after = steps; });
  };
  stop_after(4);
  EXPECT_TRUE(holds(stop_after(2), "Moved step-4, a branch that this run leaves, to "));
  EXPECT_EQ(runs.steps_in(runs.dump / "stopped"), "2");
  EXPECT_EQ(runs.steps_in(runs.dump / "stopped" / "aside-1"), "4");
}

}  // namespace
}  // namespace tokamak
