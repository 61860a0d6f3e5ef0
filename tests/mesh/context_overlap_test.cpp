// Collectives of context parallelism and the matmuls that overlap them.
#include <algorithm>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "tokamak/graph/cover_collectives.h"
#include "tokamak/models/model_spec.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/layout/pack.h"
#include "tokamak/run/planned_run.h"

#include "tests/fixtures/mesh_expect.h"

namespace tokamak {
namespace {

struct Beside {
  int collectives = 0;
  int with_matmul = 0;  // between their launch and the first task that needs their end
};

// Counts the collectives of cp of one kind in one phase.
template <class Collective>
Beside count_beside(const Plan& plan, Phase phase) {
  Beside all;
  for (const Segment& segment : plan.segments) {
    const std::vector<int> known = first_known(segment);
    for (size_t i = 0; i < segment.tasks.size(); ++i) {
      const Task& task = segment.tasks[i];
      if (task.rules != &kRules<Collective> || task.stream != kContextStream ||
          task.label.phase != phase)
        continue;
      ++all.collectives;
      const auto begin = segment.tasks.begin();
      if (std::any_of(begin + static_cast<int64_t>(i), begin + known[i],
                      [](const Task& t) { return cost_of(t).kind == Cost::Kind::kGemm; }))
        ++all.with_matmul;
    }
  }
  return all;
}

MeshCase long_case(const MeshCoordinates& degrees) {
  MeshCase c{.model = flavor_spec("llama3", "405B"),
             .compute = DType::kBF16,
             .seq_len = 8192,
             .global_batch = 1};
  c.model.num_layers = 3;
  c.distribute.mesh.degrees = degrees;
  c.distribute.covers_collectives = true;
  c.distribute.covers_context = true;
  return c;
}

struct OverlapCase {
  const char* name;
  MeshCoordinates degrees;
  ContextMethod method = ContextMethod::kAllGather;
};

class ContextOverlap : public ::testing::TestWithParam<OverlapCase> {};

TEST_P(ContextOverlap, leaves_every_bit) {
  for (const RecomputePolicy& recompute :
       {RecomputePolicy{}, RecomputePolicy{.mode = Mode::kFull},
        RecomputePolicy{.mode = Mode::kSelectiveOps, .saved_ops = {"attention", "linear"}}}) {
    for (const int64_t samples : {1, 2}) {
      const OverlapCase& of = GetParam();
      MeshCase c{.model = small_llama(), .seq_len = 16, .num_microbatches = 2, .steps = 2};
      c.distribute.mesh.degrees = of.degrees;
      c.global_batch = samples * c.num_microbatches * of.degrees[1] * of.degrees[2];
      c.distribute.context = of.method;
      c.distribute.covers_collectives = true;
      c.recompute = recompute;
      const MeshResult apart = run_mesh(c);
      c.distribute.covers_context = true;
      expect_same_bits(run_mesh(c), apart, c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, ContextOverlap,
    ::testing::Values(OverlapCase{"cp2", {1, 1, 1, 2, 1}}, OverlapCase{"cp4", {1, 1, 1, 4, 1}},
                      OverlapCase{"tp_cp", {1, 1, 1, 2, 2}},
                      OverlapCase{"fsdp_cp", {1, 1, 2, 2, 1}},
                      OverlapCase{"ring", {1, 1, 1, 2, 2}, ContextMethod::kRing},
                      OverlapCase{"ulysses", {1, 1, 1, 2, 1}, ContextMethod::kUlysses}),
    [](const auto& test) { return test.param.name; });

// Keys and values travel beside the queries' projection, in the backward beside the gradient of the
// output projection's input, and their gradients beside its weight gradient.
TEST(ContextOverlapPlan, runs_matmuls_beside_each_collective) {
  for (const MeshCoordinates& degrees : {MeshCoordinates{1, 1, 1, 4, 4}, {1, 1, 1, 2, 1}}) {
    const MeshCase c = long_case(degrees);
    const PlannedRun run(c.model, shape_of(c, 1), {});
    const auto wanted = static_cast<int>(2 * c.model.num_layers);
    for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
      const Beside gathers = count_beside<AllGather>(run.plan(), phase);
      EXPECT_EQ(gathers.collectives, wanted);
      EXPECT_EQ(gathers.with_matmul, wanted);
    }
    const Beside sums = count_beside<ReduceScatter>(run.plan(), Phase::kBackward);
    EXPECT_EQ(sums.collectives, wanted);
    EXPECT_EQ(sums.with_matmul, wanted);
  }
}

// Returns the last task of stream 0 that a task waits for.
int last_awaited(const Segment& segment, const Task& task) {
  int last = -1;
  for (const int w : task.waits) {
    if (segment.tasks[w].stream == 0) last = std::max(last, w);
  }
  return last;
}

// In the backward they leave as soon as the sum of the MLP's input gradient does.
TEST(ContextOverlapPlan, gathers_beside_the_sum_before_them) {
  const MeshCase c = long_case({1, 1, 1, 4, 4});
  const PlannedRun run(c.model, shape_of(c, 1), {});
  std::map<int32_t, std::vector<int>> gathers;  // by block: what they wait for
  std::map<int32_t, int> first_sum;
  for (const Segment& segment : run.plan().segments) {
    for (const Task& task : segment.tasks) {
      if (task.label.phase != Phase::kBackward || task.label.block < 0) continue;
      const int awaited = last_awaited(segment, task);
      if (task.rules == &kRules<AllGather> && task.stream == kContextStream)
        gathers[task.label.block].push_back(awaited);
      if (task.rules == &kRules<ReduceScatter> && task.stream == kCoveredSumStream)
        first_sum.emplace(task.label.block, awaited);
    }
  }
  EXPECT_EQ(std::ssize(gathers), c.model.num_layers);
  for (const auto& [block, awaited] : gathers) {
    EXPECT_EQ(awaited.size(), 2U);
    for (const int task : awaited) EXPECT_LE(task, first_sum.at(block)) << block;
  }
}

// A recomputed forward and the gradient of attention share what they gather.
TEST(ContextOverlapPlan, gathers_once_in_a_recomputed_backward) {
  for (const Mode mode : {Mode::kNone, Mode::kFull}) {
    MeshCase c = long_case({1, 1, 1, 4, 4});
    c.recompute.mode = mode;
    const PlannedRun run(c.model, shape_of(c, 1), {});
    for (const Phase phase : {Phase::kForward, Phase::kBackward})
      EXPECT_EQ(count_beside<AllGather>(run.plan(), phase).collectives, 2 * c.model.num_layers);
  }
}

// With one sample per microbatch, attention reads chunks of queries, keys and values in place
// instead of copying them.
TEST(ContextOverlapPlan, copies_no_slice_of_one_sample) {
  const auto slices = [](int64_t samples) {
    MeshCase c = long_case({1, 1, 1, 4, 1});
    c.global_batch = samples;
    const PlannedRun run(c.model, shape_of(c, 1), {});
    int64_t count = 0;
    for (const Segment& segment : run.plan().segments) {
      count += std::count_if(segment.tasks.begin(), segment.tasks.end(),
                             [](const Task& t) { return t.rules == &kRules<SliceDim>; });
    }
    return count / c.model.num_layers;
  };
  EXPECT_EQ(slices(1), 2);  // lse of each chunk, which has queries last
  EXPECT_GT(slices(2), 10);
}

}  // namespace
}  // namespace tokamak
