// Inputs of tensor parallel products that the backward gathers again: same bits, less memory.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tokamak/models/model_spec.h"
#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/run/planned_run.h"

#include "tests/fixtures/mesh_expect.h"

namespace tokamak {
namespace {

MeshCase gathered_case(const MeshCoordinates& degrees) {
  MeshCase c{.model = small_llama(), .seq_len = 16, .global_batch = 8, .num_microbatches = 2};
  c.distribute.mesh.degrees = degrees;
  return c;
}

struct AgainCase {
  const char* name;
  MeshCoordinates degrees;
};

class GatherAgain : public ::testing::TestWithParam<AgainCase> {
 protected:
  static void expect_the_same_bits(MeshCase c) {
    const MeshResult kept = run_mesh(c);
    c.distribute.gather_again = true;
    expect_same_bits(run_mesh(c), kept, c);
  }
};

TEST_P(GatherAgain, leaves_every_bit) {
  for (const RecomputePolicy& recompute :
       {RecomputePolicy{}, RecomputePolicy{.emit_on_backward = false},
        RecomputePolicy{.mode = Mode::kFull},
        RecomputePolicy{
            .mode = Mode::kSelectiveOps, .saved_ops = {"attention"}, .halved_ops = {"linear"}},
        RecomputePolicy{.mode = Mode::kSelectiveLayers, .every_nth_block = 2}}) {
    MeshCase c = gathered_case(GetParam().degrees);
    c.recompute = recompute;
    expect_the_same_bits(c);
    c.compute = DType::kBF16;
    expect_the_same_bits(c);
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, GatherAgain,
                         ::testing::Values(AgainCase{"tp2", {1, 1, 1, 1, 2}},
                                           AgainCase{"tp4", {1, 1, 1, 1, 4}},
                                           AgainCase{"fsdp_tp", {1, 1, 2, 1, 2}},
                                           AgainCase{"cp_tp", {1, 1, 1, 2, 2}}),
                         [](const auto& test) { return test.param.name; });

// Ranks with unequal parts of the MLP merge other matmuls, so none may decide by its own costs when
// its collectives run.
TEST(GatherAgainUneven, equals_one_rank) {
  MeshCase c = gathered_case({1, 1, 1, 1, 3});
  c.model.num_heads = 6;
  c.model.num_kv_heads = 6;
  c.model.mlp_dim = 92;
  c.seq_len = 29;
  c.recompute = {.mode = RecomputePolicy::Mode::kSelectiveLayers, .every_nth_block = 2};
  c.distribute.gather_again = true;
  c.distribute.covers_collectives = true;
  expect_as_one_rank(c);
  expect_gradients_as_one_rank(c);
}

// Weight gradients that run apart gather for themselves.
TEST(GatherAgainPipeline, leaves_every_bit) {
  for (const auto& [schedule, chunks] : {std::pair("1F1B", 1), {"ZBVZeroBubble", 2}}) {
    MeshCase c = gathered_case({2, 1, 1, 1, 2});
    c.num_microbatches = 4;
    c.model.num_layers = 4;
    set_pipeline(c, schedule, chunks);
    const MeshResult kept = run_mesh(c);
    c.distribute.gather_again = true;
    const MeshResult again = run_mesh(c);
    EXPECT_EQ(again.loss, kept.loss) << schedule;
    EXPECT_EQ(again.parameters, kept.parameters) << schedule;
  }
}

// The pipeline rank of the head may keep what the others gather again, which costs it memory alone.
TEST(GatherAgainPipeline, leaves_every_bit_where_the_head_keeps) {
  MeshCase c = gathered_case({2, 1, 1, 1, 2});
  c.num_microbatches = 4;
  c.model.num_layers = 4;
  set_pipeline(c, "Interleaved1F1B", 2);
  c.distribute.gather_again = true;
  const auto peak = [&](int rank) {
    return PlannedRun(c.model, shape_of(c, rank), {}).peak_bytes();
  };
  const MeshResult again = run_mesh(c);
  const int64_t first = peak(0);
  const int64_t last = peak(2);
  c.distribute.gather_again_with_head = false;
  const MeshResult kept = run_mesh(c);
  expect_same_bits(kept, again, c);
  EXPECT_EQ(peak(0), first);
  EXPECT_GT(peak(2), last);
}

// Two gathers a layer more, and nothing else; none where the layer is recomputed in any case, and
// no group for them.
TEST(GatherAgainTraffic, is_two_gathers_a_layer) {
  for (const int t : {2, 4}) {
    for (const Mode mode : {Mode::kNone, Mode::kFull}) {
      MeshCase c = gathered_case({1, 1, 1, 1, t});
      c.recompute.mode = mode;
      const auto kept = run_mesh(c).traffic;
      c.distribute.gather_again = true;
      const auto again = run_mesh(c).traffic;
      const int64_t layers = mode == Mode::kNone ? c.model.num_layers : 0;
      const int64_t bytes = c.global_batch * c.seq_len * c.model.dim / t * (t - 1) * 4;
      EXPECT_EQ(again.all_gather.bytes, kept.all_gather.bytes + c.steps * 2 * layers * bytes);
      EXPECT_EQ(again.reduce_scatter.bytes, kept.reduce_scatter.bytes);
      const PlannedRun run(c.model, shape_of(c, 1), {});
      const auto& groups = run.plan().groups.entries;
      const bool has_group = std::any_of(groups.begin(), groups.end(), [](const auto& group) {
        return group.purpose == GroupPurpose::kAgain;
      });
      EXPECT_EQ(has_group, layers > 0);
    }
  }
}

// Of what products read a rank of tp saves its part, and has one or two whole at a time.
TEST(GatherAgainPlan, saves_parts_of_what_is_gathered) {
  const ModelSpec model = flavor_spec("llama3", "8B");
  for (const int tp : {2, 4, 8}) {
    MeshCase c{.model = model, .compute = DType::kBF16, .seq_len = 8192, .global_batch = 1};
    c.distribute.mesh.degrees = {1, 1, 1, 1, tp};
    const int64_t kept = PlannedRun(model, shape_of(c, 1), {}).peak_bytes();
    c.distribute.gather_again = true;
    const int64_t again = PlannedRun(model, shape_of(c, 1), {}).peak_bytes();
    const int64_t whole = c.seq_len * model.dim * 2;
    const int64_t all = 2 * model.num_layers * whole;
    EXPECT_LE(again, kept - all + all / tp + 2 * whole) << "tp " << tp;
  }
}

// Those of the backward alone have a stream of their own; each is on its way while a product runs,
// and begins after the gather of what that product reads.
TEST(GatherAgainPlan, gathers_beside_products) {
  MeshCase c = gathered_case({1, 1, 1, 1, 4});
  c.distribute.gather_again = true;
  const PlannedRun run(c.model, shape_of(c, 1), {});
  int64_t gathers = 0;
  for (const Segment& segment : run.plan().segments) {
    const std::vector<int> known = first_known(segment);
    for (size_t i = 0; i < segment.tasks.size(); ++i) {
      const Task& task = segment.tasks[i];
      if (task.rules != &kRules<AllGather> || task.stream == 0) continue;
      ++gathers;
      const auto begin = segment.tasks.begin();
      const bool is_beside =
          std::any_of(begin + static_cast<int64_t>(i), begin + known[i],
                      [](const Task& other) { return other.rules == &kRules<LinearGradInput>; });
      EXPECT_TRUE(is_beside) << segment.name << ": gather " << i << " until " << known[i];
      const bool follows_a_gather = std::any_of(task.waits.begin(), task.waits.end(), [&](int w) {
        return segment.tasks[static_cast<size_t>(w)].rules == &kRules<AllGather>;
      });
      EXPECT_TRUE(follows_a_gather) << segment.name << ": gather " << i;
    }
  }
  EXPECT_EQ(gathers, 2 * c.model.num_layers);
}

}  // namespace
}  // namespace tokamak
