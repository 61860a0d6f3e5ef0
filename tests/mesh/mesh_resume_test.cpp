// Checkpoints that change the mesh, and faults of a rank in training, by the command alone.
#include <array>
#include <csignal>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/mesh_cli_run.h"
#include "tests/fixtures/processes.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

const Words kResumable{"--checkpoint.enable", "--checkpoint.last_save_model_only=false"};

// One part of a run, on a mesh of its own.
struct Leg {
  int num_ranks;
  std::array<int, 5> degrees;  ///< pp, dp_replicate, dp_shard, cp, tp
  Words more;
};

struct Chain {
  const char* name;
  const char* model;
  Words common;
  std::vector<Leg> legs;
};

Words mesh_words(const Leg& leg, int64_t global_batch) {
  const auto& d = leg.degrees;
  return Words{fmt::format("--parallelism.pipeline_parallel_degree={}", d[0]),
               fmt::format("--parallelism.data_parallel_replicate_degree={}", d[1]),
               fmt::format("--parallelism.data_parallel_shard_degree={}", d[2]),
               fmt::format("--parallelism.context_parallel_degree={}", d[3]),
               fmt::format("--parallelism.tensor_parallel_degree={}", d[4]),
               fmt::format("--training.local_batch_size={}", global_batch / (d[1] * d[2]))} +
         leg.more;
}

class MeshResume : public ::testing::TestWithParam<Chain> {
 protected:
  void SetUp() override {
    write_model(model_, GetParam().model);
    write_tokens(scratch_.path() / "a.u32", 3000, 121);
    write_tokens(scratch_.path() / "b.u32", 1000, 100);
  }

  Words words(const fs::path& dump, int64_t steps, const Words& more) const {
    const std::string folder = scratch_.path().string() + "/";
    return train_words(
        "llama_tiny", dump,
        Words{"--model.hf_assets_path=" + model_.string(), "--training.dataset=tokens",
              "--training.dataset_path=0.7 " + folder + "a.u32 0.3 " + folder + "b.u32",
              "--training.shuffle_seed=3", "--training.global_batch_size=8",
              "--checkpoint.interval=100", fmt::format("--training.steps={}", steps)} +
            kResumable + GetParam().common + more);
  }

  ScratchFolder scratch_;
  fs::path model_ = scratch_.path() / "model";
};

constexpr int64_t kLegSteps = 3;

// The uninterrupted run of one rank; its last checkpoint, moments too, is compared as well.
TEST_P(MeshResume, EveryAxisMayChange) {
  const fs::path whole = scratch_.path() / "whole";
  const fs::path parts = scratch_.path() / "parts";
  int64_t steps = 0;
  for (const Leg& leg : GetParam().legs) {
    const int64_t begin = steps;
    steps += kLegSteps;
    const auto run = run_ok(on_ranks(leg.num_ranks, words(parts, steps, mesh_words(leg, 8))));
    EXPECT_NE(run.out.find(fmt::format("starts at step {}", begin + 1)), std::string::npos)
        << run.out;
  }
  run_ok(words(whole, steps, {"--training.local_batch_size=8"}));
  expect_same_curve(parts, whole, static_cast<size_t>(steps));
  const std::string last = fmt::format("checkpoint/step-{}", steps);
  const auto got = read_tensors(parts / last);
  const auto want = read_tensors(whole / last);
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, bytes] : want) {
    if (name.find("bias") != std::string::npos) continue;  // a key bias holds rounding
    ASSERT_EQ(got.count(name), 1U) << name;
    EXPECT_LE(relative_error(to_floats(got.at(name)), to_floats(bytes)), 1e-4) << name;
  }
}

// The last leg is of one rank, so that its checkpoint has the files of the other run.
INSTANTIATE_TEST_SUITE_P(
    Chains, MeshResume,
    ::testing::Values(
        Chain{"llama",
              "llama",
              {},
              {{4, {1, 1, 4, 1, 1}, {}},
               {4, {2, 1, 1, 1, 2}, {}},
               {1, {1, 1, 1, 1, 1}, {}},
               {4, {1, 1, 2, 2, 1}, {}},
               {6, {2, 1, 1, 1, 3}, {"--parallelism.pipeline_parallel_schedule=ZBVZeroBubble"}},
               {1, {1, 1, 1, 1, 1}, {}}}},
        Chain{"gpt2_dropout",
              "gpt2",
              {"--model.dropout=0.1", "--checkpoint.async_mode=async"},
              {{8, {1, 2, 2, 1, 2}, {}},
               {2, {1, 1, 2, 1, 1}, {"--parallelism.data_parallel_type=zero1"}},
               {3, {3, 1, 1, 1, 1}, {}},
               {4, {1, 1, 1, 4, 1}, {"--parallelism.context_parallel_rotate_method=alltoall"}},
               {1, {1, 1, 1, 1, 1}, {}}}},
        Chain{"llama_tied",
              "llama_tied",
              {},
              {{1, {1, 1, 1, 1, 1}, {}},
               {8, {2, 1, 2, 1, 2}, {"--parallelism.pipeline_parallel_schedule=Interleaved1F1B"}},
               {2, {1, 2, 1, 1, 1}, {}},
               {5, {1, 1, 1, 1, 5}, {}},
               {1, {1, 1, 1, 1, 1}, {}}}}),
    [](const auto& of) { return std::string(of.param.name); });

struct TwoRanks {
  ScratchFolder scratch;
  fs::path whole = scratch.path() / "whole";
  fs::path parts = scratch.path() / "parts";

  Words words(const fs::path& dump, int64_t steps, const Words& more = {}) const {
    return train_words(
        "llama_tiny", dump,
        kResumable + Words{"--checkpoint.interval=20", fmt::format("--training.steps={}", steps)} +
            more);
  }

  Words sharded(int64_t steps) const {
    return words(parts, steps, {"--training.local_batch_size=1", "--training.global_batch_size=2"});
  }
};

// A rank of two is killed after the first checkpoint; the job starts again and ends as one that
// nobody touched.
TEST(MeshFault, AKilledRankIsResumed) {
  const TwoRanks run;
  run_ok(run.words(run.whole, 150));
  Words launch = on_ranks(2, run.sharded(150));
  launch.insert(launch.begin() + 2, {"--max-restarts", "1"});
  RunningProgram program(launch);
  await([&] { return path_exists(run.parts / "checkpoint/step-20"); }, "a checkpoint");
  const auto ranks = training_processes(run.parts);
  ASSERT_EQ(ranks.size(), 2U);
  ASSERT_EQ(kill(ranks[1].id, SIGKILL), 0);
  const auto result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find(" died of signal 9 (Killed)"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("tokamak launch: restart 1 of 1\n"), std::string::npos) << result.err;
  expect_same_curve(run.parts, run.whole, 150);
}

// SIGTERM to the launcher: all ranks save after the same step, and one rank goes on from there.
TEST(MeshFault, TerminateSavesOnAllRanks) {
  const TwoRanks run;
  RunningProgram program(on_ranks(2, run.sharded(1000000)));
  await([&] { return read_curve(run.parts).loss.size() >= 3; }, "three steps");
  program.send(SIGTERM);
  const auto result = program.wait();
  EXPECT_EQ(result.exit_code, 85) << result.err;
  EXPECT_EQ(result.err, "");
  const auto steps = static_cast<int64_t>(read_curve(run.parts).loss.size());
  EXPECT_TRUE(path_exists(run.parts / fmt::format("checkpoint/step-{}", steps)));
  const auto resumed = run_ok(run.words(run.parts, steps + 3));
  EXPECT_NE(resumed.out.find(fmt::format("starts at step {}", steps + 1)), std::string::npos)
      << resumed.out;
  run_ok(run.words(run.whole, steps + 3));
  expect_same_curve(run.parts, run.whole, static_cast<size_t>(steps + 3));
}

}  // namespace
}  // namespace tokamak
