// Forwards that run together with weight gradients of the backward before them: same bits, and work
// beside each collective of tensor parallelism.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/graph/cover_collectives.h"
#include "tokamak/models/model_spec.h"
#include "tokamak/run/planned_run.h"

#include "tests/fixtures/mesh_expect.h"
#include "tests/mesh/float8_case.h"

namespace tokamak {
namespace {

// Wide MLPs, whose weight gradients take longer than collectives. Rows of a matmul keep their bits
// in the reference loops alone.
MeshCase joined_case(const MeshCoordinates& degrees) {
  MeshCase c{.model = small_llama(), .seq_len = 8, .global_batch = 6, .num_microbatches = 6};
  c.model.num_layers = 4;
  c.model.dim = 16;
  c.model.head_dim = 4;
  c.model.mlp_dim = degrees[3] > 1 ? 16384 : 8192;
  c.steps = 2;
  c.reference_only = true;
  c.distribute.mesh.degrees = degrees;
  c.distribute.covers_collectives = true;
  c.distribute.covers_context = true;
  c.global_batch *= degrees[1] * degrees[2];
  set_pipeline(c, "1F1B", 1);
  return c;
}

std::vector<std::unique_ptr<PlannedRun>> plans_of(const MeshCase& c) {
  std::vector<std::unique_ptr<PlannedRun>> runs;
  std::vector<const Plan*> plans;
  for (int rank = 0; rank < c.distribute.mesh.size(); ++rank) {
    runs.push_back(std::make_unique<PlannedRun>(c.model, shape_of(c, rank), Target{}));
    plans.push_back(&runs.back()->plan());
    check_plan(*plans.back());
  }
  check_ranks(c.distribute.mesh, plans, static_cast<int>(c.num_microbatches));
  return runs;
}

int64_t num_joined_items(const Plan& plan) {
  return std::count_if(plan.items.begin(), plan.items.end(), [&](const ScheduleItem& item) {
    return plan.segments[item.segment].joined.has_value();
  });
}

void expect_bits_of_parted(MeshCase c) {
  SCOPED_TRACE(describe(c));
  c.distribute.covers_forwards = false;
  const MeshResult plain = run_mesh(c);
  c.distribute.covers_forwards = true;
  expect_same_bits(run_mesh(c), plain, c);
  int64_t joined = 0;
  for (const auto& run : plans_of(c)) joined += num_joined_items(run->plan());
  EXPECT_GT(joined, 0);
}

struct JoinCase {
  const char* name;
  MeshCoordinates degrees;
  const char* schedule;
  int chunks;
};

class JoinForwards : public ::testing::TestWithParam<JoinCase> {};

MeshCase case_of(const JoinCase& p) {
  MeshCase c = joined_case(p.degrees);
  set_pipeline(c, p.schedule, p.chunks);
  return c;
}

TEST_P(JoinForwards, leaves_every_bit) {
  MeshCase c = case_of(GetParam());
  expect_bits_of_parted(c);
  c.distribute.gather_again = true;
  c.compute = DType::kBF16;
  expect_bits_of_parted(c);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, JoinForwards,
    ::testing::Values(JoinCase{"pp2_tp2", {2, 1, 1, 1, 2}, "1F1B", 1},
                      JoinCase{"pp2_tp2_interleaved", {2, 1, 1, 1, 2}, "Interleaved1F1B", 2},
                      JoinCase{"pp2_fsdp2_tp2", {2, 1, 2, 1, 2}, "1F1B", 1},
                      JoinCase{"pp2_cp2_tp2", {2, 1, 1, 2, 2}, "Interleaved1F1B", 2}),
    [](const auto& test) { return test.param.name; });

TEST(JoinForwardsModes, leave_every_bit) {
  for (const RecomputePolicy& recompute :
       {RecomputePolicy{.mode = Mode::kFull},
        RecomputePolicy{
            .mode = Mode::kSelectiveOps, .saved_ops = {"attention"}, .halved_ops = {"linear"}},
        RecomputePolicy{.mode = Mode::kSelectiveLayers, .every_nth_block = 2}}) {
    MeshCase c = joined_case({2, 1, 1, 1, 2});
    c.recompute = recompute;
    expect_bits_of_parted(c);
  }
  MeshCase late = joined_case({2, 1, 1, 1, 2});
  late.distribute.receives_ahead = 0;
  late.distribute.overlaps_gathers = true;
  expect_bits_of_parted(late);
}

TEST(JoinForwardsGpt2, leaves_every_bit) {
  for (const auto& [schedule, chunks] : {std::pair("1F1B", 1), {"Interleaved1F1B", 2}}) {
    MeshCase c = joined_case({2, 1, 1, 1, 2});
    set_pipeline(c, schedule, chunks);
    c.model = {.family = &family_of("gpt2"),
               .name = "test",
               .flavor = "wide",
               .vocab_size = 48,
               .dim = 16,
               .num_layers = 4,
               .num_heads = 4,
               .num_kv_heads = 4,
               .head_dim = 4,
               .mlp_dim = 16384,
               .max_seq_len = 32};
    expect_bits_of_parted(c);
  }
}

TEST(JoinForwardsFloat8, leaves_every_bit) {
  for (const char* recipe : {"tensorwise", "delayed", "rowwise"}) {
    MeshCase c = mesh_case(
        recipe, {.name = "joined", .degrees = {2, 1, 1, 1, 2}, .microbatches = 8, .seq_len = 16});
    c.model.mlp_dim = 8192;
    c.steps = 2;
    c.reference_only = true;
    c.distribute.covers_collectives = true;
    expect_bits_of_parted(c);
  }
}

// Where tp cuts blocks unevenly, or a schedule runs weight gradients apart, nothing is joined.
TEST(JoinForwardsPlan, leaves_ranks_of_uneven_parts_and_schedules_that_split_the_backward) {
  MeshCase uneven = joined_case({2, 1, 1, 1, 2});
  uneven.model.mlp_dim = 8191;
  MeshCase split = joined_case({2, 1, 1, 1, 2});
  set_pipeline(split, "ZBVZeroBubble", 2);
  for (MeshCase* c : {&uneven, &split}) {
    c->distribute.covers_forwards = true;
    for (const auto& run : plans_of(*c)) EXPECT_EQ(num_joined_items(run->plan()), 0);
  }
}

bool covers_a_forward(const Task& task) {
  return cost_of(task).product == Cost::Product::kWeightGradient;
}

// In a joined segment a weight gradient runs beside each of the forward's four collectives, and
// beside the sum of the embeddings. No item
// of the first or the last microbatch is joined, and each backward has its weight gradients once.
void expect_work_beside_forwards(const std::optional<LowPrecisionChoice>& float8) {
  MeshCase c{.model = flavor_spec("llama3", "405B"),
             .compute = DType::kBF16,
             .seq_len = 8192,
             .global_batch = 8,
             .num_microbatches = 8};
  c.model.num_layers = 4;
  c.distribute.mesh.degrees = {2, 1, 1, 1, 8};
  set_pipeline(c, "Interleaved1F1B", 2);
  c.distribute.covers_collectives = true;
  c.distribute.covers_forwards = true;
  c.float8 = float8;
  const PlannedRun run(c.model, shape_of(c, 0), {});
  const Plan& plan = run.plan();
  int segments = 0;
  for (const Segment& segment : plan.segments) {
    if (!segment.joined) continue;
    ++segments;
    const std::vector<int> known = first_known(segment);
    int collectives = 0;
    for (size_t i = 0; i < segment.tasks.size(); ++i) {
      const Task& task = segment.tasks[i];
      if (!task.rules->is_communication || task.label.block < 0) continue;
      if (task.stream != kCoveredGatherStream && task.stream != kCoveredSumStream) continue;
      ++collectives;
      const auto begin = segment.tasks.begin();
      EXPECT_TRUE(std::any_of(begin + static_cast<int64_t>(i), begin + known[i], covers_a_forward))
          << segment.name << ", task " << i;
    }
    const bool has_embedding = plan.segments[segment.joined->forward].point->stage == 0;
    EXPECT_EQ(collectives, has_embedding ? 5 : 4) << segment.name;
  }
  EXPECT_GT(segments, 0);
  std::vector<std::vector<int>> done(plan.segments.size(), std::vector<int>(8, 0));
  for (const ScheduleItem& item : plan.items) {
    const auto& joined = plan.segments[item.segment].joined;
    ++done[static_cast<size_t>(joined ? joined->forward : item.segment)][item.microbatch];
    if (!joined) continue;
    EXPECT_FALSE(item.is_first || item.is_last);
    ++done[static_cast<size_t>(joined->weight)][item.left_microbatch];
  }
  for (size_t s = 0; s < plan.segments.size(); ++s) {
    if (!plan.segments[s].point || plan.segments[s].is_background) continue;
    EXPECT_EQ(done[s], std::vector<int>(8, 1)) << plan.segments[s].name;
  }
}

TEST(JoinForwardsPlan, runs_weight_gradients_beside_their_collectives) {
  expect_work_beside_forwards({});
}

TEST(JoinForwardsPlan, runs_quantized_weight_gradients_under_their_collectives) {
  for (const char* recipe : {"tensorwise", "delayed"})
    expect_work_beside_forwards(mesh_case(recipe, {}).float8);
}

}  // namespace
}  // namespace tokamak
