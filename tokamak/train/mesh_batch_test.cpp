#include "tokamak/train/mesh_batch.h"

#include <map>
#include <set>

#include <gtest/gtest.h>

#include "tokamak/checkpoint/test_tensors.h"
#include "tokamak/run/mesh_options.h"

namespace tokamak {
namespace {

Batch batch_of(int64_t rows, int64_t seq_len) {
  Batch batch{.rows = rows, .seq_len = seq_len, .valid_rows = rows};
  for (int64_t i = 0; i < rows * seq_len; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(100 + i));
    batch.labels.push_back(i % 5 == 0 ? kIgnoreIndex : static_cast<int32_t>(1000 + i));
  }
  return batch;
}

TEST(MeshBatch, RowsAreContiguousByDataParallelRank) {
  const Mesh mesh{.degrees = {2, 3, 2, 1, 2}};
  std::map<int64_t, int> readers;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const RowShare share = row_share(mesh, rank, 24);
    EXPECT_EQ(share.num_rows, 4);
    const auto place = mesh.coordinates(rank);
    EXPECT_EQ(share.first_row, 4 * (place[1] * 2 + place[2])) << rank;
    ++readers[share.first_row];
  }
  EXPECT_EQ(readers.size(), 6U);
  for (const auto& [row, count] : readers) EXPECT_EQ(count, 4) << row;
}

TEST(MeshBatch, EachGroupOfReadersCountsItsLabelsOnce) {
  const Mesh mesh{.degrees = {2, 2, 2, 2, 2}};
  std::set<int64_t> counted;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (!counts_rows(mesh, rank)) continue;
    EXPECT_TRUE(counted.insert(dp_index(mesh, rank)).second);
  }
  EXPECT_EQ(counted.size(), 4U);
  EXPECT_EQ(count_labels(batch_of(2, 5)), 8);
}

// Every token of the data comes to exactly one context-parallel rank, with its position and label.
void expect_dealt(int cp, int64_t seq_len, int64_t padded_len, bool head_and_tail) {
  const Mesh mesh{.degrees = {1, 1, 1, cp, 1}};
  const Batch batch = batch_of(3, seq_len);
  std::map<std::pair<int64_t, int32_t>, std::pair<int32_t, int32_t>> seen;
  for (int rank = 0; rank < cp; ++rank) {
    const SequenceShare share = sequence_share(mesh, rank, seq_len, padded_len, head_and_tail);
    const LocalBatch local = local_batch(batch, share);
    const int64_t length = share.local_len();
    ASSERT_EQ(length * cp, padded_len);
    ASSERT_EQ(std::ssize(local.tokens), 3 * length);
    for (int64_t i = 0; i < 3 * length; ++i) {
      const auto at = static_cast<size_t>(i);
      const std::pair key{i / length, local.positions[at]};
      EXPECT_TRUE(seen.emplace(key, std::pair{local.tokens[at], local.labels[at]}).second);
      EXPECT_EQ(local.positions[at], share.position(i % length));
    }
  }
  ASSERT_EQ(std::ssize(seen), 3 * padded_len);
  for (const auto& [key, value] : seen) {
    const auto from = static_cast<size_t>(key.first * seq_len + key.second);
    const bool is_padding = key.second >= seq_len;
    EXPECT_EQ(value.first, is_padding ? 0 : batch.tokens[from]);
    EXPECT_EQ(value.second, is_padding ? kIgnoreIndex : batch.labels[from]);
  }
}

TEST(MeshBatch, EveryTokenIsDealtOnce) {
  expect_dealt(1, 7, 7, true);
  expect_dealt(1, 7, 8, false);
  expect_dealt(2, 16, 16, true);
  expect_dealt(2, 13, 16, true);
  expect_dealt(3, 13, 15, false);
  expect_dealt(3, 13, 18, true);
  expect_dealt(4, 3, 8, true);
  expect_dealt(4, 3, 8, false);
}

TEST(MeshBatch, HeadAndTailChunksBalance) {
  const Mesh mesh{.degrees = {1, 1, 1, 2, 1}};
  const Batch batch = batch_of(1, 7);
  const SequenceShare first = sequence_share(mesh, 0, 7, 8, true);
  EXPECT_EQ(local_batch(batch, first).positions, (std::vector<int32_t>{0, 1, 6, 7}));
  EXPECT_EQ(local_batch(batch, first).tokens, (std::vector<int32_t>{100, 101, 106, 0}));
  EXPECT_EQ(local_batch(batch, first).labels,
            (std::vector<int32_t>{kIgnoreIndex, 1001, 1006, kIgnoreIndex}));
  const SequenceShare second = sequence_share(mesh, 1, 7, 8, true);
  EXPECT_EQ(local_batch(batch, second).positions, (std::vector<int32_t>{2, 3, 4, 5}));
  const SequenceShare in_order = sequence_share(mesh, 1, 7, 8, false);
  EXPECT_EQ(local_batch(batch, in_order).positions, (std::vector<int32_t>{4, 5, 6, 7}));
}

TEST(MeshBatch, PaddingStaysInsideATableOfPositions) {
  SequenceShare share = sequence_share({}, 0, 6, 8, true);
  share.num_positions = 6;
  EXPECT_EQ(local_batch(batch_of(1, 6), share).positions,
            (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 5, 5}));
}

TEST(MeshOptions, KeysBecomeOptions) {
  Config config;
  ParallelismConfig& p = config.parallelism;
  p.data_parallel_replicate_degree = 2;
  p.pipeline_parallel_degree = 2;
  config.training.local_batch_size = 8;
  config.training.global_batch_size = 64;
  p.pipeline_parallel_microbatch_size = 2;
  const Degrees degrees = resolve_degrees(p, 8);
  EXPECT_EQ(mesh_of(degrees).degrees, (std::array{2, 2, 2, 1, 1}));
  const DistributeOptions o = distribute_options(config, degrees, 5);
  EXPECT_EQ(o.rank, 5);
  EXPECT_EQ(o.sharding, Sharding::kFsdp);
  EXPECT_TRUE(o.loss_parallel);
  EXPECT_EQ(o.context, ContextMethod::kAllGather);
  const BatchSizes sizes = batch_sizes(config, degrees);
  EXPECT_EQ(sizes.microbatch, 2);
  EXPECT_EQ(sizes.num_microbatches, 8);
  EXPECT_EQ(sizes.microbatch * sizes.dp, 8);
  EXPECT_EQ(batch_sizes(config, resolve_degrees(p, 8)).dp, 4);
  EXPECT_TRUE(o.head_and_tail);
  p.context_parallel_load_balancer = std::nullopt;
  EXPECT_FALSE(distribute_options(config, degrees, 0).head_and_tail);
}

TEST(MeshOptions, ShardingIsNamedOrFollowsFromTheDegrees) {
  Config config;
  ParallelismConfig& p = config.parallelism;
  const auto sharding = [&](int64_t ranks) {
    return distribute_options(config, resolve_degrees(p, ranks), 0).sharding;
  };
  EXPECT_EQ(sharding(4), Sharding::kFsdp);
  p.data_parallel_replicate_degree = 4;
  p.data_parallel_shard_degree = 1;
  EXPECT_EQ(sharding(4), Sharding::kDdp);
  p.context_parallel_degree = 2;
  EXPECT_EQ(sharding(8), Sharding::kFsdp);
  p.data_parallel_type = "zero2";
  EXPECT_EQ(sharding(8), Sharding::kZero2);
  p.data_parallel_type = "zero1";
  EXPECT_EQ(sharding(8), Sharding::kZero1);
  p.data_parallel_type = "ddp";
  EXPECT_EQ(sharding(8), Sharding::kDdp);
}

TEST(MeshOptions, PipelinesComeFromKeysOrFromAFile) {
  Config config;
  ParallelismConfig& p = config.parallelism;
  p.pipeline_parallel_degree = 2;
  config.training.local_batch_size = 4;
  config.training.global_batch_size = 8;
  const Degrees degrees = resolve_degrees(p, 2);
  const int64_t count = batch_sizes(config, degrees).num_microbatches;
  EXPECT_EQ(count, 8);
  PipelinePlan plan = pipeline_plan(config, degrees, 6, count);
  EXPECT_EQ(plan.split.num_stages, 2);
  EXPECT_EQ(plan.schedule.num_microbatches, 8);
  EXPECT_EQ(plan.schedule.rank_of_stage, (std::vector<int>{0, 1}));
  p.pipeline_parallel_schedule = "Interleaved1F1B";
  plan = pipeline_plan(config, degrees, 6, count);
  EXPECT_EQ(plan.schedule.rank_of_stage, (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(plan.split.stage_of_layer.size(), 6U);

  p.pipeline_parallel_schedule = "LoopedBFS";
  plan = pipeline_plan(config, degrees, 6, count);
  EXPECT_EQ(plan.schedule.num_microbatches, 8);
  EXPECT_EQ(slots_of(plan.schedule), (std::vector<int>{4, 4, 4, 4})) << "of a local batch each";

  const testing::ScratchFolder scratch;
  const auto path = scratch.path() / "schedule.csv";
  p.pipeline_parallel_schedule = "PipelineScheduleMulti";
  p.pipeline_parallel_schedule_csv = path.string();
  testing::write_text(path, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  plan = pipeline_plan(config, degrees, 6, count);
  EXPECT_EQ(plan.schedule.num_microbatches, 8);
  EXPECT_EQ(plan.split.num_stages, 2);
  EXPECT_ERROR(pipeline_plan(config, degrees, 6, 3), "2 microbatches, but a step has 3");
  testing::write_text(path, "0F0,0B0\n");
  EXPECT_ERROR(pipeline_plan(config, degrees, 6, count), "pipeline_parallel_schedule_csv");
}

TEST(MeshOptions, OneRankIsOneStage) {
  const Config config;
  const Degrees degrees;
  const PipelinePlan plan = pipeline_plan(config, degrees, 6, 3);
  EXPECT_EQ(plan.split.num_stages, 1);
  EXPECT_EQ(plan.schedule.num_microbatches, 3);
}

TEST(MeshOptions, AccumulationSumsOverTheRanksRows) {
  Config config;
  config.training.local_batch_size = 4;
  config.training.global_batch_size = 24;
  const Degrees degrees = resolve_degrees(config.parallelism, 2);
  const BatchSizes sizes = batch_sizes(config, degrees);
  EXPECT_EQ(sizes.num_microbatches, 3);
  EXPECT_EQ(sizes.microbatch * sizes.dp, 8);
  config.training.global_batch_size = -1;
  EXPECT_EQ(batch_sizes(config, degrees).global, 8);
}

}  // namespace
}  // namespace tokamak
