// Matmuls whose sums are scattered over tp run in chunks: same bits, and work beside the sums.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tokamak/models/model_spec.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/run/planned_run.h"

#include "tests/fixtures/mesh_expect.h"

namespace tokamak {
namespace {

// Returns a case of one sample in each microbatch.
MeshCase chunked_case(const MeshCoordinates& degrees) {
  MeshCase c{.model = small_llama(), .seq_len = 32, .num_microbatches = 2, .steps = 2};
  c.distribute.mesh.degrees = degrees;
  c.distribute.token_blocks = 4;
  c.reference_only = true;
  c.global_batch = 2 * c.distribute.mesh.degree({MeshAxis::kDpReplicate, MeshAxis::kDpShard});
  return c;
}

void expect_bits_of_whole(MeshCase c) {
  c.distribute.token_chunks = 1;
  const MeshResult whole = run_mesh(c);
  c.distribute.token_chunks = 4;
  expect_same_bits(run_mesh(c), whole, c);
}

struct ChunkCase {
  const char* name;
  MeshCoordinates degrees;
};

class ChunkSums : public ::testing::TestWithParam<ChunkCase> {};

TEST_P(ChunkSums, leaves_every_bit) {
  for (const RecomputePolicy& recompute :
       {RecomputePolicy{}, RecomputePolicy{.mode = Mode::kFull},
        RecomputePolicy{
            .mode = Mode::kSelectiveOps, .saved_ops = {"attention"}, .halved_ops = {"linear"}}}) {
    MeshCase c = chunked_case(GetParam().degrees);
    c.recompute = recompute;
    expect_bits_of_whole(c);
    c.distribute.gather_again = true;
    c.distribute.covers_collectives = true;
    expect_bits_of_whole(c);
    c.compute = DType::kBF16;
    expect_bits_of_whole(c);
  }
}

// Blocks change which rank of tp has a token between blocks of the model, and nothing else.
TEST_P(ChunkSums, equals_one_rank) {
  MeshCase c = chunked_case(GetParam().degrees);
  c.distribute.token_chunks = 4;
  expect_as_one_rank(c);
}

// Ranks that share the only key head rotate a part of the sequence each.
TEST(ChunkSumsOfSharedKeys, equals_one_rank) {
  MeshCase c = chunked_case({1, 1, 1, 1, 4});
  c.model.num_kv_heads = 1;
  expect_as_one_rank(c);
  expect_gradients_as_one_rank(c);
}

INSTANTIATE_TEST_SUITE_P(Meshes, ChunkSums,
                         ::testing::Values(ChunkCase{"tp2", {1, 1, 1, 1, 2}},
                                           ChunkCase{"tp4", {1, 1, 1, 1, 4}},
                                           ChunkCase{"fsdp_tp", {1, 1, 2, 1, 2}},
                                           ChunkCase{"cp_tp", {1, 1, 1, 2, 2}}),
                         [](const auto& test) { return test.param.name; });

TEST(ChunkSumsPipeline, leaves_every_bit) {
  for (const auto& [schedule, chunks] :
       {std::pair("1F1B", 1), {"Interleaved1F1B", 2}, {"InterleavedZeroBubble", 2}}) {
    MeshCase c = chunked_case({2, 1, 1, 1, 2});
    c.num_microbatches = 4;
    c.global_batch = 4;
    c.model.num_layers = 4;
    set_pipeline(c, schedule, chunks);
    expect_bits_of_whole(c);
  }
}

// A block has four sums: two in the forward, after the output and down projections, and two in the
// input gradients. Each runs three of its four chunks beside the matmul of the next chunk.
TEST(ChunkSumsPlan, runs_matmuls_beside_all_chunks_but_the_last) {
  MeshCase c{.model = flavor_spec("llama3", "405B"),
             .compute = DType::kBF16,
             .seq_len = 8192,
             .global_batch = 1};
  c.model.num_layers = 4;
  c.distribute.mesh.degrees = {1, 1, 1, 1, 8};
  c.distribute.token_blocks = 4;
  c.distribute.token_chunks = 4;
  const PlannedRun run(c.model, shape_of(c, 1), {});
  int64_t chunks = 0;
  int64_t hidden = 0;
  for (const Segment& segment : run.plan().segments) {
    const std::vector<int> known = first_known(segment);
    for (size_t i = 0; i < segment.tasks.size(); ++i) {
      const Task& task = segment.tasks[i];
      if (task.rules != &kRules<ReduceScatter> || task.stream == 0 || task.label.block < 0)
        continue;
      if (task.label.phase != Phase::kForward && task.label.phase != Phase::kBackward) continue;
      ++chunks;
      const auto begin = segment.tasks.begin();
      const auto is_matmul = [](const Task& other) {
        return cost_of(other).kind == Cost::Kind::kGemm;
      };
      if (std::any_of(begin + static_cast<int64_t>(i), begin + known[i], is_matmul)) ++hidden;
    }
  }
  EXPECT_EQ(chunks, 4 * 4 * c.model.num_layers);
  EXPECT_GE(hidden, 3 * chunks / 4);
}

}  // namespace
}  // namespace tokamak
