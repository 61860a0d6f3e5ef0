// Whole runs on meshes of threads: checkpoints from one mesh to another, validation, signals,
// agreement, exports.
#include <atomic>
#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "tokamak/checkpoint/checkpoint_folder.h"
#include "tokamak/checkpoint/formats/hf_weights.h"
#include "tokamak/checkpoint/test_tensors.h"
#include "tokamak/comm/test_world.h"
#include "tokamak/core/json.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/train/options.h"
#include "tokamak/train/together.h"

#include "tests/fixtures/mesh_training.h"

namespace tokamak {
namespace {

using testing::ScratchFolder;

void expect_same_losses(const fs::path& got, const fs::path& want, int64_t world_size) {
  const auto a = lines_of(got);
  const auto b = lines_of(want);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (const char* key : {"loss", "grad_norm"}) {
      if (!b[i].contains(key)) continue;
      const auto value = b[i][key].get<double>();
      EXPECT_NEAR(a[i][key].get<double>(), value, 1e-5 * std::abs(value)) << key << " " << i;
    }
    EXPECT_EQ(a[i]["step"], b[i]["step"]);
    EXPECT_EQ(a.back()["world_size"], world_size);
  }
}

const std::vector<std::array<int64_t, 5>> kMeshes{
    {1, 1, 2, 1, 1}, {1, 2, 1, 1, 2}, {1, 1, 2, 2, 1}, {2, 1, 1, 1, 1}, {2, 1, 2, 1, 1}};

TEST(MeshTrainer, EveryMeshGoesOnFromEveryOther) {
  const ScratchFolder scratch;
  const fs::path one = scratch.path() / "one";
  train_on(small_config(one));
  for (size_t i = 0; i < kMeshes.size(); ++i) {
    const fs::path dump = scratch.path() / std::to_string(i);
    Config c = on_mesh(small_config(dump), kMeshes[i]);
    c.training.steps = 3;
    c.checkpoint.async_mode = i % 2 == 0 ? "async" : "disabled";
    train_on(c);
    const auto& other = kMeshes[(i + 1) % kMeshes.size()];
    Config next = on_mesh(small_config(dump), other);
    train_on(next);
    expect_same_losses(dump / "metrics.jsonl", one / "metrics.jsonl", default_world_size(next));
    EXPECT_EQ(list_checkpoints(dump / "checkpoint").size(), 2U);
  }
}

TEST(MeshTrainer, ValidationIsThatOfOneRank) {
  const ScratchFolder scratch;
  const auto with_validation = [](Config c, int64_t rows) {  // rows of a rank at once
    c.checkpoint.enable = false;
    c.training.steps = 2;
    c.validation.enable = true;
    c.validation.dataset = "synthetic";
    c.validation.seq_len = 10;
    c.validation.steps = 3;
    c.validation.local_batch_size = rows;
    c.validation.freq = 2;
    return c;
  };
  const fs::path one = scratch.path() / "one";
  train_on(with_validation(small_config(one), 4));
  for (size_t i = 0; i < kMeshes.size(); ++i) {
    const fs::path dump = scratch.path() / std::to_string(i);
    Config c = on_mesh(small_config(dump), kMeshes[i]);
    const int64_t dp = kMeshes[i][1] * kMeshes[i][2];
    c = with_validation(c, i % 2 == 0 ? 4 / dp : 3);
    train_on(c);
    expect_same_losses(dump / "validation.jsonl", one / "validation.jsonl", default_world_size(c));
  }
}

TEST(MeshTrainer, ASignalOnOneRankStopsAllAfterTheSameStep) {
  const ScratchFolder scratch;
  Config c = on_mesh(small_config(scratch.path()), {1, 1, 2, 1, 2});
  c.checkpoint.last_save_model_only = true;
  c.training.steps = 1000;
  std::atomic<int> asked = 0;
  train_on(c, [&](int rank, Config&, TrainerOptions& options) {
    if (rank == 2)
      options.stop_signal = [&] { return ++asked >= 4 ? 15 : 0; };  // once before the steps
  });
  const auto newest = testing::newest_complete(scratch.path() / "checkpoint");
  ASSERT_TRUE(newest.entry.has_value());
  EXPECT_EQ(newest.entry->step, 3);
  EXPECT_EQ(lines_of(scratch.path() / "metrics.jsonl").size(), 3U);
}

TEST(MeshTrainer, ASignalEndsALongValidationBetweenBatches) {
  const ScratchFolder scratch;
  Config c = on_mesh(small_config(scratch.path()), {1, 1, 2, 1, 1});
  c.validation.enable = true;
  c.validation.dataset = "synthetic";
  c.validation.seq_len = 12;
  c.validation.local_batch_size = 2;
  c.validation.steps = 1'000'000'000;
  std::atomic<int> asked = 0;
  train_on(c, [&](int rank, Config&, TrainerOptions& options) {
    if (rank == 1) options.stop_signal = [&] { return ++asked >= 6 ? 15 : 0; };
  });
  EXPECT_TRUE(path_exists(scratch.path() / "checkpoint/step-1/manifest.json"));
  EXPECT_TRUE(read_file(scratch.path() / "validation.jsonl").empty());
  EXPECT_EQ(lines_of(scratch.path() / "metrics.jsonl").size(), 1U);
}

TEST(MeshTrainer, RanksThatDisagreeDoNotBegin) {
  const ScratchFolder scratch;
  const Config c = on_mesh(small_config(scratch.path()), {1, 1, 3, 1, 1});
  Config even = c;
  even.training.global_batch_size = 6;
  const std::string error = testing::error_of([&] {
    train_on(even, [](int rank, Config& config, TrainerOptions&) {
      if (rank == 1) config.optimizer.lr = 0.5;
    });
  });
  EXPECT_NE(error.find("optimizer.lr is"), std::string::npos) << error;
  EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
  EXPECT_FALSE(path_exists(scratch.path() / "metrics.jsonl"));
}

TEST(MeshTrainer, DivergenceEndsAllRanksAlike) {
  const ScratchFolder scratch;
  Config c = on_mesh(small_config(scratch.path()), {1, 1, 2, 1, 2});
  c.optimizer.lr = 1e30;
  c.training.max_norm = 0.0;
  EXPECT_THROW(train_on(c), Diverged);
}

TEST(MeshTrainer, ExportsAreThoseOfOneRank) {
  const ScratchFolder scratch;
  const auto exported = [&](const std::string& name, const std::array<int64_t, 5>& degrees) {
    Config c = on_mesh(small_config(scratch.path() / name), degrees);
    c.training.steps = 2;
    c.checkpoint.last_save_model_only = true;
    c.checkpoint.last_save_in_hf = true;
    train_on(c);
    return scratch.path() / name / "checkpoint" / "step-2";
  };
  const HfWeights want(exported("one", {1, 1, 1, 1, 1}));
  for (const auto& degrees : kMeshes) {
    const HfWeights got(exported("mesh", degrees));
    EXPECT_EQ(got.sources().size(), want.sources().size());
    for (const TensorSource& w : want.sources()) {
      const auto a = testing::values_of(source_of(*got.find(w.name)));
      const auto b = testing::values_of(w);
      ASSERT_EQ(a.size(), b.size()) << w.name;
      for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-3) << w.name;
    }
    fs::remove_all(scratch.path() / "mesh");
  }
}

}  // namespace
}  // namespace tokamak
