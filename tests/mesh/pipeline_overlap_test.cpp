// Receives that stand late, and weights gathered stage by stage beside the first forwards: same
// bits.
#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/ops/comm/collective.h"
#include "tokamak/run/planned_run.h"

#include "tests/fixtures/mesh_expect.h"
#include "tests/mesh/float8_case.h"

namespace tokamak {
namespace {

MeshCase pipeline_case(const char* schedule, int chunks) {
  MeshCase c{.model = small_llama(),
             .compute = DType::kBF16,
             .seq_len = 16,
             .global_batch = 8,
             .num_microbatches = 4,
             .steps = 3};
  c.model.num_layers = 4;
  c.distribute.mesh.degrees = {2, 1, 2, 1, 1};
  c.distribute.sharding = Sharding::kZero1;
  set_pipeline(c, schedule, chunks);
  return c;
}

class PipelineOverlap : public ::testing::TestWithParam<std::pair<const char*, int>> {};

TEST_P(PipelineOverlap, leaves_every_bit) {
  MeshCase c = pipeline_case(GetParam().first, GetParam().second);
  const MeshResult plain = run_mesh(c);
  c.distribute.receives_ahead = 0;
  expect_same_bits(run_mesh(c), plain, c);
  c.distribute.overlaps_gathers = true;
  expect_same_bits(run_mesh(c), plain, c);
}

INSTANTIATE_TEST_SUITE_P(Schedules, PipelineOverlap,
                         ::testing::Values(std::pair("1F1B", 1), std::pair("Interleaved1F1B", 2),
                                           std::pair("InterleavedZeroBubble", 2),
                                           std::pair("ZBVZeroBubble", 2)),
                         [](const auto& test) { return test.param.first; });

// Each stage has an item of its own, which its gathers outlive; the first forward of a stage waits
// for its own gathers alone.
TEST(PipelineOverlapPlan, first_forwards_wait_for_the_gathers_of_their_stage) {
  MeshCase c = pipeline_case("Interleaved1F1B", 2);
  c.distribute.overlaps_gathers = true;
  const PlannedRun run(c.model, shape_of(c, 0), {});
  const Plan& plan = run.plan();
  int num_items = 0;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const Segment& segment = plan.segments[plan.items[i].segment];
    if (segment.runs != Segment::Runs::kOnceBefore) continue;
    ++num_items;
    EXPECT_FALSE(segment.outliving_streams.empty()) << segment.name;
    const auto waiting = std::find_if(plan.items.begin(), plan.items.end(), [&](const auto& item) {
      return std::find(item.waits.begin(), item.waits.end(), static_cast<int>(i)) !=
             item.waits.end();
    });
    ASSERT_NE(waiting, plan.items.end()) << segment.name;
    const auto& point = plan.segments[waiting->segment].point;
    ASSERT_TRUE(point) << segment.name;
    EXPECT_EQ(point->kind, PipelineItemKind::kForward) << segment.name;
    EXPECT_EQ(point->stage, segment.tasks[0].label.stage) << segment.name;
  }
  EXPECT_EQ(num_items, 2);
}

MeshCase float8_pipeline(const char* recipe, bool keeps_transposed) {
  const Place place{.name = "pipeline",
                    .degrees = {2, 1, 2, 1, 1},
                    .microbatches = 4,
                    .schedule = "Interleaved1F1B",
                    .chunks = 2};
  MeshCase c = mesh_case(recipe, place);
  c.float8->recipe.keeps_transposed = keeps_transposed;
  return c;
}

TEST(PipelineOverlapFloat8, leaves_every_bit) {
  for (const char* recipe : {"tensorwise", "delayed", "rowwise", "blockwise"}) {
    for (const bool keeps : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, keeps both layouts: {}", recipe, keeps));
      MeshCase c = float8_pipeline(recipe, keeps);
      const MeshResult plain = run_mesh(c);
      c.distribute.overlaps_gathers = true;
      expect_same_bits(run_mesh(c), plain, c);
    }
  }
}

// Quantized values are gathered while stages run, although they are made before and transposed
// afterwards: what is computed from them waits for the stage's first forward.
TEST(PipelineOverlapFloat8, gathers_of_quantized_values_outlive_their_item) {
  MeshCase c = float8_pipeline("delayed", true);
  c.distribute.overlaps_gathers = true;
  const PlannedRun run(c.model, shape_of(c, 0), {});
  const Plan& plan = run.plan();
  int num_gathers = 0;
  int num_transposing = 0;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const Segment& segment = plan.segments[plan.items[i].segment];
    if (segment.runs != Segment::Runs::kOnceBefore) continue;
    for (const Task& task : segment.tasks) {
      if (task.rules != &kRules<AllGather>) continue;
      ++num_gathers;
      EXPECT_TRUE(segment.outlives(task.stream)) << segment.name;
    }
    if (!segment.before_stage) {
      EXPECT_LT(i, 6U) << segment.name;  // two for each stage come first, and one for what is small
      continue;
    }
    ++num_transposing;
    EXPECT_FALSE(plan.items[i].waits.empty()) << segment.name;
    const auto forward = std::find_if(plan.items.begin(), plan.items.end(), [&](const auto& item) {
      const auto& point = plan.segments[item.segment].point;
      return point && point->kind == PipelineItemKind::kForward &&
             point->stage == *segment.before_stage;
    });
    EXPECT_EQ(forward - plan.items.begin(), static_cast<std::ptrdiff_t>(i) + 1);
  }
  EXPECT_GE(num_gathers, 2);
  EXPECT_EQ(num_transposing, 2);
}

}  // namespace
}  // namespace tokamak
