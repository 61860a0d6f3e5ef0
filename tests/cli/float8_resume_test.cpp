// Checkpoints of 8-bit training hold masters, moments and tables of delayed scales. A resumed run
// has the same bits on the same mesh, and it may change its mesh, its recipe or its precision.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/fixtures/training_run.h"

namespace tokamak {
namespace {

const Words kFloat8{"--model.converters=quantize.linear.float8"};
const Words kDelayed = kFloat8 + Words{"--quantize.linear.float8.recipe_name=delayed",
                                       "--quantize.linear.float8.amax_history_len=4"};
const Words kRowwise = kFloat8 + Words{"--quantize.linear.float8.recipe_name=rowwise"};

const Words kShards{"--parallelism.data_parallel_shard_degree=2", "--training.global_batch_size=2",
                    "--training.local_batch_size=1"};
const Words kStages{"--parallelism.data_parallel_shard_degree=1",
                    "--parallelism.pipeline_parallel_degree=2",
                    "--parallelism.pipeline_parallel_microbatch_size=1"};

void expect_losses_near(const std::vector<double>& wanted, const std::vector<double>& got,
                        const std::string& folder) {
  ASSERT_EQ(got.size(), wanted.size()) << folder;
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_NEAR(got[i], wanted[i], 0.02 * wanted[i]) << folder << " step " << i + 1;
}

class Float8Resume : public ::testing::Test {
 protected:
  // Losses of the steps that this run took, on N ranks.
  std::vector<double> train(const std::string& folder, int64_t steps, const Words& more,
                            int ranks = 1) {
    const auto dump = scratch.path() / folder;
    Words words = train_words("llama_float8_tensorwise", dump,
                              {"--checkpoint.enable", "--checkpoint.interval=3",
                               "--checkpoint.last_save_model_only=false",
                               fmt::format("--training.steps={}", steps)}) +
                  more;
    if (ranks > 1) words.insert(words.begin() + 1, {"launch", "-n", std::to_string(ranks), "--"});
    const auto result = run_program(words, scratch.path());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    said = result.out + result.err;
    std::vector<double> losses;
    for (const Json& line : read_json_lines(dump / "metrics.jsonl"))
      losses.push_back(line["loss"].get<double>());
    return losses;
  }

  const ScratchFolder scratch;
  std::string said;  // by the last run
};

TEST_F(Float8Resume, HasTheBitsOfAnUninterruptedRun) {
  for (const Words& recipe : {kFloat8, kRowwise, kDelayed}) {
    const std::string name = recipe.back();
    const auto whole = train(name + ".whole", 6, recipe);
    train(name + ".parts", 3, recipe);
    EXPECT_EQ(train(name + ".parts", 6, recipe), whole);
    ASSERT_EQ(whole.size(), 6U);
  }
}

TEST_F(Float8Resume, GoesOnInAnotherPrecisionRecipeOrMesh) {
  const auto plain = train("plain", 6, {});
  ASSERT_EQ(plain.size(), 6U);
  const auto expect_near = [&](const std::string& folder, const std::vector<double>& got) {
    expect_losses_near(plain, got, folder);
  };
  train("to_float8", 3, {});
  expect_near("to_float8", train("to_float8", 6, kFloat8));
  train("to_plain", 3, kFloat8);
  expect_near("to_plain", train("to_plain", 6, {}));
  train("to_rowwise", 3, kFloat8);
  expect_near("to_rowwise", train("to_rowwise", 6, kRowwise));
  train("to_stages", 3, kFloat8 + kShards, 2);
  expect_near("to_stages", train("to_stages", 6, kFloat8 + kStages, 2));
}

TEST_F(Float8Resume, KeepsDelayedScalesWhereTheCheckpointHasThem) {
  const std::string missing = "float8: the checkpoint has no delayed scales";
  const auto plain = train("plain", 6, {});
  const auto expect_near = [&](const std::string& folder, const std::vector<double>& got) {
    expect_losses_near(plain, got, folder);
  };
  train("meshes", 3, kDelayed + kShards, 2);
  expect_near("meshes", train("meshes", 6, kDelayed + kStages, 2));
  EXPECT_EQ(said.find(missing), std::string::npos) << said;
  train("from_plain", 3, {});
  expect_near("from_plain", train("from_plain", 6, kDelayed));
  EXPECT_NE(said.find(missing), std::string::npos) << said;
  train("to_plain", 3, kDelayed);
  expect_near("to_plain", train("to_plain", 6, {}));
  train("to_tensorwise", 3, kDelayed);
  expect_near("to_tensorwise", train("to_tensorwise", 6, kFloat8));
}

// The rows of the table in a checkpoint of the run in `dump`.
std::map<std::string, std::vector<float>> table_of(const std::filesystem::path& dump, int step) {
  std::map<std::string, std::vector<float>> rows;
  for (const auto& [name, bytes] : read_tensors(dump / fmt::format("checkpoint/step-{}", step))) {
    if (const size_t at = name.find("fp8."); at != std::string::npos)
      rows[name.substr(at)] = to_floats(bytes);
  }
  return rows;
}

// Three steps after a change of mesh, a history of four still begins with what the other mesh had.
TEST_F(Float8Resume, TakesTheTableFromMeshToMesh) {
  const Words recipe = kDelayed + Words{"--quantize.linear.float8.filter_fqns=mlp,output"};
  const Words shards{"--parallelism.data_parallel_shard_degree=4", "--training.global_batch_size=4",
                     "--training.local_batch_size=1"};
  const Words tensor_and_stages{"--parallelism.data_parallel_shard_degree=1",
                                "--parallelism.tensor_parallel_degree=2",
                                "--parallelism.pipeline_parallel_degree=2",
                                "--parallelism.pipeline_parallel_microbatch_size=1",
                                "--training.global_batch_size=4",
                                "--training.local_batch_size=4"};
  const auto plain = train("plain", 9, {"--training.local_batch_size=4"});
  std::vector<double> losses;
  std::vector<std::map<std::string, std::vector<float>>> tables;
  for (const Words& mesh : {shards, tensor_and_stages, shards}) {
    const int steps = 3 * static_cast<int>(tables.size() + 1);
    losses = train("chain", steps, recipe + mesh, 4);
    tables.push_back(table_of(scratch.path() / "chain", steps));
  }
  expect_losses_near(plain, losses, "chain");
  ASSERT_EQ(tables[0].size(), 2U * 2U * 3U);  // layers, qkv and o, x and w and g
  for (size_t leg = 1; leg < tables.size(); ++leg) {
    ASSERT_EQ(tables[leg].size(), tables[0].size());
    for (const auto& [name, row] : tables[leg - 1]) {
      ASSERT_EQ(row.size(), 1U + 4U);
      EXPECT_GT(row[1], 0.0F) << name;
      EXPECT_EQ(tables[leg].at(name)[4], row[1]) << name << " after leg " << leg;
    }
  }
}

TEST_F(Float8Resume, RefusesAHistoryOfAnotherLength) {
  train("lengths", 3, kDelayed);
  const auto result = run_program(train_words("llama_float8_tensorwise", scratch.path() / "lengths",
                                              {"--checkpoint.enable", "--training.steps=6"}) +
                                      kFloat8 +
                                      Words{"--quantize.linear.float8.recipe_name=delayed",
                                            "--quantize.linear.float8.amax_history_len=16"},
                                  scratch.path());
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("quantize.linear.float8.amax_history_len = 16: "), std::string::npos)
      << result.err;
  EXPECT_NE(result.err.find("has histories of 4"), std::string::npos) << result.err;
}

TEST_F(Float8Resume, CountsSitesThatSaturate) {
  train("counted", 3, kDelayed);
  const auto lines = read_json_lines(scratch.path() / "counted" / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0]["fp8_saturated_sites"].get<double>(), 0.0);  // each by its own maximum
  EXPECT_GT(lines[1]["fp8_saturated_sites"].get<double>(), 0.0);
  train("uncounted", 1, kFloat8);
  EXPECT_TRUE(
      read_json_lines(scratch.path() / "uncounted" / "metrics.jsonl")[0]["fp8_saturated_sites"]
          .is_null());
}

TEST_F(Float8Resume, ValidatesWithTheSameMatmuls) {
  const Words validated{"--validation.enable",     "--validation.dataset=synthetic",
                        "--validation.steps=1",    "--validation.freq=3",
                        "--validation.seq_len=32", "--validation.local_batch_size=2"};
  const auto loss_of = [&](const std::string& folder, const Words& more, int ranks = 1) {
    train(folder, 3, validated + more, ranks);
    const auto lines = read_json_lines(scratch.path() / folder / "validation.jsonl");
    EXPECT_FALSE(lines.empty()) << folder;
    return lines.empty() ? 0.0 : lines.back()["loss"].get<double>();
  };
  const double plain = loss_of("plain", {});
  for (const Words& recipe : {kFloat8, kDelayed}) {
    const double float8 = loss_of("float8." + recipe.back(), recipe);
    EXPECT_NEAR(float8, plain, 0.02 * plain);
    EXPECT_NE(float8, plain);
    EXPECT_NEAR(loss_of("shards." + recipe.back(), recipe + kShards, 2), float8, 0.02 * plain);
  }
}

}  // namespace
}  // namespace tokamak
