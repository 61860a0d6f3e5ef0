// Collectives of the backward that weight gradients cover: same bits, and work that overlaps them.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/models/model_spec.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/float8/transpose_quantized.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/run/planned_run.h"

#include "tests/fixtures/mesh_expect.h"
#include "tests/mesh/float8_case.h"

namespace tokamak {
namespace {

ModelSpec narrow_gpt2() {
  return {.family = &family_of("gpt2"),
          .name = "test",
          .flavor = "narrow",
          .vocab_size = 48,
          .dim = 32,
          .num_layers = 2,
          .num_heads = 4,
          .num_kv_heads = 4,
          .head_dim = 8,
          .mlp_dim = 64,
          .max_seq_len = 32};
}

MeshCase covered_case(const MeshCoordinates& degrees) {
  MeshCase c{.model = small_llama(), .seq_len = 16, .global_batch = 8, .num_microbatches = 2};
  c.distribute.mesh.degrees = degrees;
  return c;
}

void expect_bits_of_uncovered(MeshCase c) {
  c.distribute.covers_collectives = false;
  const MeshResult plain = run_mesh(c);
  c.distribute.covers_collectives = true;
  expect_same_bits(run_mesh(c), plain, c);
}

struct CoverCase {
  const char* name;
  MeshCoordinates degrees;
};

class CoverCollectives : public ::testing::TestWithParam<CoverCase> {};

TEST_P(CoverCollectives, leaves_every_bit) {
  for (const RecomputePolicy& recompute :
       {RecomputePolicy{}, RecomputePolicy{.mode = Mode::kFull},
        RecomputePolicy{
            .mode = Mode::kSelectiveOps, .saved_ops = {"attention"}, .halved_ops = {"linear"}}}) {
    MeshCase c = covered_case(GetParam().degrees);
    c.recompute = recompute;
    expect_bits_of_uncovered(c);
    c.distribute.gather_again = true;
    expect_bits_of_uncovered(c);
    c.compute = DType::kBF16;
    expect_bits_of_uncovered(c);
  }
  MeshCase gpt2 = covered_case(GetParam().degrees);
  gpt2.model = narrow_gpt2();
  expect_bits_of_uncovered(gpt2);
}

INSTANTIATE_TEST_SUITE_P(Meshes, CoverCollectives,
                         ::testing::Values(CoverCase{"tp2", {1, 1, 1, 1, 2}},
                                           CoverCase{"tp4", {1, 1, 1, 1, 4}},
                                           CoverCase{"fsdp_tp", {1, 1, 2, 1, 2}},
                                           CoverCase{"cp_tp", {1, 1, 1, 2, 2}}),
                         [](const auto& test) { return test.param.name; });

TEST(CoverCollectivesPipeline, leaves_every_bit) {
  for (const auto& [schedule, chunks] : {std::pair("1F1B", 1), {"Interleaved1F1B", 2}}) {
    MeshCase c = covered_case({2, 1, 1, 1, 2});
    c.num_microbatches = 4;
    c.model.num_layers = 4;
    set_pipeline(c, schedule, chunks);
    expect_bits_of_uncovered(c);
  }
}

// Where weight gradients run apart, the backward has none to cover a collective with.
TEST(CoverCollectivesPlan, leaves_schedules_that_split_the_backward) {
  MeshCase c = covered_case({2, 1, 1, 1, 2});
  c.num_microbatches = 4;
  c.model.num_layers = 4;
  set_pipeline(c, "ZBVZeroBubble", 2);
  c.distribute.covers_collectives = true;
  const PlannedRun run(c.model, shape_of(c, 1), {});
  for (const GroupTable::Entry& group : run.plan().groups.entries)
    EXPECT_NE(group.purpose, GroupPurpose::kCovered);
}

bool is_weight_gradient(const Task& task) {
  return cost_of(task).product == Cost::Product::kWeightGradient;
}

TEST(CoverCollectivesFloat8, leaves_every_bit) {
  for (const char* recipe : {"tensorwise", "delayed", "rowwise"}) {
    for (const MeshCoordinates& degrees :
         {MeshCoordinates{1, 1, 1, 1, 2}, MeshCoordinates{1, 1, 1, 2, 2}}) {
      SCOPED_TRACE(fmt::format("{}, cp {}", recipe, degrees[3]));
      expect_bits_of_uncovered(mesh_case(recipe, {.name = "covered", .degrees = degrees}));
    }
  }
}

// Four layers of 405B on eight ranks of tp.
MeshCase large_case() {
  MeshCase c{.model = flavor_spec("llama3", "405B"),
             .compute = DType::kBF16,
             .seq_len = 8192,
             .global_batch = 1};
  c.model.num_layers = 4;
  c.distribute.mesh.degrees = {1, 1, 1, 1, 8};
  c.distribute.covers_collectives = true;
  return c;
}

// A block's backward has four collectives, and a weight gradient runs beside each but the first
// gather of the last block, before which there is none.
void expect_work_beside_collectives(const std::optional<LowPrecisionChoice>& float8) {
  MeshCase c = large_case();
  c.float8 = float8;
  const PlannedRun run(c.model, shape_of(c, 1), {});
  int64_t collectives = 0;
  int64_t covered = 0;
  for (const Segment& segment : run.plan().segments) {
    const std::vector<int> known = first_known(segment);
    for (size_t i = 0; i < segment.tasks.size(); ++i) {
      const Task& task = segment.tasks[i];
      if (!task.rules->is_communication || task.stream == 0 || task.label.block < 0) continue;
      if (task.rules != &kRules<AllGather> && task.rules != &kRules<ReduceScatter>) continue;
      ++collectives;
      const auto begin = segment.tasks.begin();
      if (std::any_of(begin + static_cast<int64_t>(i), begin + known[i], is_weight_gradient))
        ++covered;
    }
  }
  EXPECT_EQ(collectives, 4 * c.model.num_layers);
  EXPECT_GE(covered, collectives - 2);
}

TEST(CoverCollectivesPlan, runs_weight_gradients_beside_them) {
  expect_work_beside_collectives({});
}

TEST(CoverCollectivesPlan, runs_quantized_weight_gradients_concurrently) {
  for (const char* recipe : {"tensorwise", "delayed"})
    expect_work_beside_collectives(mesh_case(recipe, {}).float8);
}

// Quantized values that only a weight gradient reads are transposed right before it, beside what it
// covers.
TEST(CoverCollectivesPlan, transposes_quantized_values_with_the_weight_gradient_that_reads_them) {
  MeshCase c = large_case();
  c.float8 = mesh_case("delayed", {}).float8;
  const PlannedRun run(c.model, shape_of(c, 1), {});
  int count = 0;
  for (const Segment& segment : run.plan().segments) {
    for (size_t i = 0; i + 1 < segment.tasks.size(); ++i) {
      const Task& task = segment.tasks[i];
      if (task.rules != &kRules<TransposeQuantized> || task.label.phase != Phase::kBackward ||
          task.in[0].type.dtype != DType::kE5M2)
        continue;
      ++count;
      size_t next = i + 1;
      while (segment.tasks[next].rules == &kRules<TransposeQuantized>) ++next;
      EXPECT_TRUE(is_weight_gradient(segment.tasks[next])) << segment.name << " " << i;
    }
  }
  EXPECT_EQ(count, 2 * c.model.num_layers);  // gathered gradients of the MLP and of attention
}

// The sum of the head's input gradient begins before the head's weight gradient.
TEST(CoverCollectivesPlan, sums_beside_the_weight_gradient_of_the_head) {
  MeshCase c = covered_case({1, 1, 1, 1, 2});
  c.distribute.covers_collectives = true;
  const PlannedRun run(c.model, shape_of(c, 1), {});
  int sums = 0;
  for (const Segment& segment : run.plan().segments) {
    const std::vector<int> known = first_known(segment);
    for (size_t i = 0; i < segment.tasks.size(); ++i) {
      const Task& task = segment.tasks[i];
      if (task.rules != &kRules<ReduceScatter> || task.stream == 0 ||
          task.label.phase != Phase::kForward)
        continue;
      ++sums;
      EXPECT_TRUE(std::any_of(segment.tasks.begin() + static_cast<int64_t>(i),
                              segment.tasks.begin() + known[i], is_weight_gradient));
    }
  }
  EXPECT_EQ(sums, 1);
}

// Delayed weight gradients keep few values longer.
TEST(CoverCollectivesPlan, takes_little_memory) {
  const ModelSpec model = flavor_spec("llama3", "8B");
  MeshCase c{.model = model, .compute = DType::kBF16, .seq_len = 8192, .global_batch = 1};
  c.distribute.mesh.degrees = {1, 1, 1, 1, 8};
  const int64_t plain = PlannedRun(model, shape_of(c, 1), {}).peak_bytes();
  c.distribute.covers_collectives = true;
  const int64_t covered = PlannedRun(model, shape_of(c, 1), {}).peak_bytes();
  const int64_t whole = c.seq_len * model.dim * 2;
  EXPECT_LE(covered, plain + 4 * whole);
}

}  // namespace
}  // namespace tokamak
