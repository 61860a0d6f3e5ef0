// Steps before which all operands have delayed scales, against steps that take maxima in any case.
#include <cmath>

#include <gtest/gtest.h>

#include "tokamak/ops/float8/quantize.h"
#include "tokamak/ops/float8/quantize_ranges.h"

#include "tests/mesh/float8_case.h"

namespace tokamak {
namespace {

constexpr Place kScaledPlaces[] = {
    {"one", {1, 1, 1, 1, 1}},
    {"replicas", {1, 2, 1, 1, 1}},
    {"shards", {1, 1, 2, 1, 1}},
    {"zero1", {1, 1, 2, 1, 1}, Sharding::kZero1, 2},
    {"tensor", {1, 1, 1, 1, 2}},
    {"context", {1, 1, 1, 2, 1}},
    {"zero_bubble", {2, 1, 1, 1, 1}, Sharding::kFsdp, 4, {}, "ZBVZeroBubble", 2},
    {"pipeline_of_all", {2, 1, 2, 1, 2}, Sharding::kFsdp, 4},
};

int64_t gated_maxima(const Plan& plan) {
  int64_t count = 0;
  for (const Segment& segment : plan.segments) {
    for (const Task& task : segment.tasks) {
      const bool is_gated =
          (task.rules == &kRules<Amax> && static_cast<const Amax*>(task.op.get())->is_gated) ||
          (task.rules == &kRules<AmaxRanges> &&
           static_cast<const AmaxRanges*>(task.op.get())->is_gated);
      count += is_gated ? 1 : 0;
    }
  }
  return count;
}

class Float8Scales : public ::testing::TestWithParam<Place> {};

TEST_P(Float8Scales, give_the_same_bits_without_maxima) {
  MeshCase c = mesh_case("delayed", GetParam());
  c.float8->recipe.fuses = false;  // so that maxima are tasks of their own
  c.steps = 4;
  const PlannedRun run(c.model, shape_of(c, 0), {});
  EXPECT_EQ(gated_maxima(run.plan()), 0);
  EXPECT_GT(gated_maxima(*run.plan_without_scales()), 0);
  for (const bool fuses : {false, true}) {
    c.float8->recipe.fuses = fuses;
    c.takes_maxima = false;
    const MeshResult scaled = run_mesh(c);
    c.takes_maxima = true;
    const MeshResult taken = run_mesh(c);
    expect_same_bits(scaled, taken, c);
    EXPECT_EQ(scaled.steps_without_scales, 1);
    EXPECT_LE(scaled.traffic.all_reduce.calls, taken.traffic.all_reduce.calls);
  }
}

// The maxima of a tensor that ranks share are reduced in the first step alone.
TEST(Float8ScalesTraffic, reduces_maxima_once) {
  for (const Place& place : {kScaledPlaces[2], kScaledPlaces[4]}) {
    MeshCase c = mesh_case("delayed", place);
    const auto calls = [&](int64_t steps, bool takes_maxima) {
      c.steps = steps;
      c.takes_maxima = takes_maxima;
      return run_mesh(c).traffic.all_reduce.calls;
    };
    const int64_t first = calls(1, false);
    EXPECT_EQ(calls(1, true), first) << place.name;
    const int64_t more = calls(3, false) - first;
    EXPECT_EQ(calls(3, true), 3 * first) << place.name;
    EXPECT_LT(more, 2 * first) << place.name;
    EXPECT_EQ(calls(5, false) - first, 2 * more) << place.name;
  }
}

// Quantized values under the scale of earlier steps clamp an infinity, after which all is finite
// again. One rank's must keep all ranks from the update.
TEST(Float8Infinities, leave_the_step_out_on_all_ranks) {
  for (const Place& place : {kScaledPlaces[0], kScaledPlaces[1], kScaledPlaces[4]}) {
    MeshCase c = mesh_case("delayed", place);
    c.steps = 2;
    const MeshResult before = run_mesh(c);
    c.steps = 3;
    c.poisoned_rank = place.degrees[4] > 1 ? 1 : place.degrees[1] - 1;
    const MeshResult after = run_mesh(c);
    EXPECT_TRUE(std::isfinite(after.grad_norm[1])) << place.name;
    EXPECT_TRUE(std::isnan(after.grad_norm[2])) << place.name;
    EXPECT_EQ(after.parameters, before.parameters) << place.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Places, Float8Scales, ::testing::ValuesIn(kScaledPlaces),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace tokamak
