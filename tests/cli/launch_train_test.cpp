// `tokamak launch -- train` with processes as ranks: the same run as one rank, saved, stopped,
// refused.
#include <cmath>
#include <csignal>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/file.h"

#include "tests/fixtures/processes.h"
#include "tests/fixtures/training_run.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

Words launched(int num_ranks, const Words& train) {
  Words words{TOK_PROGRAM, "launch", "-n", std::to_string(num_ranks), "--"};
  words.insert(words.end(), train.begin() + 1, train.end());
  return words;
}

Words small(const fs::path& dump, const Words& more) {
  return train_words("llama_tiny", dump,
                     Words{"--training.seq_len=16", "--training.global_batch_size=8",
                           "--checkpoint.enable", "--checkpoint.last_save_model_only=false"} +
                         more);
}

void expect_same_run(const fs::path& got, const fs::path& want) {
  const auto a = read_json_lines(got / "metrics.jsonl");
  const auto b = read_json_lines(want / "metrics.jsonl");
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (const char* key : {"loss", "grad_norm"}) {
      const auto value = b[i][key].get<double>();
      EXPECT_NEAR(a[i][key].get<double>(), value, 1e-5 * std::abs(value)) << key << " " << i;
    }
  }
}

TEST(LaunchTrain, FourProcessesTrainAndTwoOthersGoOn) {
  const ScratchFolder scratch;
  const fs::path one = scratch.path() / "one";
  const fs::path mesh = scratch.path() / "mesh";
  ASSERT_EQ(run_program(small(one, {})).exit_code, 0);
  const auto first = run_program(
      launched(4, small(mesh, {"--parallelism.tensor_parallel_degree=2", "--training.steps=3",
                               "--checkpoint.async_mode=async"})));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const auto next =
      run_program(launched(2, small(mesh, {"--parallelism.pipeline_parallel_degree=2"})));
  ASSERT_EQ(next.exit_code, 0) << next.err;
  EXPECT_NE(next.out.find("starts at step 4"), std::string::npos) << next.out;
  expect_same_run(mesh, one);
  EXPECT_EQ(read_json_lines(mesh / "metrics.jsonl").back()["world_size"], 2);
}

TEST(LaunchTrain, ASignalSavesAndExits85) {
  const ScratchFolder scratch;
  const fs::path& dump = scratch.path();
  RunningProgram run(launched(2, small(dump, {"--training.steps=1000000"})));
  await([&] { return steps_logged(dump) >= 3; }, "three steps");
  run.send(SIGINT);
  const auto result = run.wait();
  EXPECT_EQ(result.exit_code, 85) << result.err;
  EXPECT_NE(result.out.find("Stopped by Ctrl-C after step "), std::string::npos) << result.out;
  const auto steps = steps_logged(dump);
  EXPECT_TRUE(path_exists(dump / fmt::format("checkpoint/step-{}/manifest.json", steps)));
}

TEST(LaunchTrain, ErrorsAreSaidOnce) {
  const ScratchFolder scratch;
  const auto result =
      run_program(launched(4, small(scratch.path(), {"--parallelism.tensor_parallel_degree=3"})));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("parallelism.tensor_parallel_degree 3"), std::string::npos)
      << result.err;
  EXPECT_NE(result.err.find("there are 4 ranks"), std::string::npos) << result.err;
  EXPECT_EQ(count_lines(result.err), 1) << result.err;
}

TEST(LaunchTrain, TwoRanksOfOneNumberAreRefused) {
  const ScratchFolder scratch;
  const Words words = small(scratch.path(), {});
  std::string command;
  for (const std::string& word : words) command += word + " ";
  FileWriter(scratch.path() / "rank.sh")
      .write("#!/bin/sh\n[ $OMPI_COMM_WORLD_RANK != 2 ] || export OMPI_COMM_WORLD_RANK=1\nexec " +
             command + "\n");
  fs::permissions(scratch.path() / "rank.sh", fs::perms::owner_all);
  const auto result =
      run_program({TOK_PROGRAM, "launch", "-n", "3", "--", (scratch.path() / "rank.sh").string()});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("as rank 1 of 3, but MPI sees rank 2 of 3"), std::string::npos)
      << result.err;
}

// Runs two ranks by a script, in which each may have its own `before` and the last word `after`.
ProgramResult run_by_script(const fs::path& dump, const Words& train, const std::string& before,
                            const std::string& after) {
  std::string command = before + "exec ";
  for (const std::string& word : train) command += word + " ";
  const fs::path script = dump / "rank.sh";
  FileWriter(script).write("#!/bin/sh\n" + command + after + "\n");
  fs::permissions(script, fs::perms::owner_all);
  return run_program({TOK_PROGRAM, "launch", "-n", "2", "--", script.string()});
}

TEST(LaunchTrain, ADisagreementNamesKeyAndRanks) {
  const ScratchFolder scratch;
  const auto result = run_by_script(scratch.path(), small(scratch.path(), {}), "",
                                    "--optimizer.lr=0.00$((1 + OMPI_COMM_WORLD_RANK))");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("optimizer.lr is"), std::string::npos) << result.err;
  EXPECT_FALSE(path_exists(scratch.path() / "metrics.jsonl"));
}

TEST(LaunchTrain, UnlikeInstructionSetsAreSaid) {
  const ScratchFolder scratch;
  const auto result =
      run_by_script(scratch.path(), small(scratch.path(), {"--training.steps=1"}),
                    "[ $OMPI_COMM_WORLD_RANK = 1 ] && export ONEDNN_MAX_CPU_ISA=SSE41\n", "");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("ranks compute on unlike devices"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace tokamak
