// Plans that need less memory for more time, in 8-bit floats: their bits, and what they do.
#include <algorithm>

#include <gtest/gtest.h>

#include "tokamak/ops/float8/quantize.h"
#include "tokamak/ops/float8/scaled_matmul.h"

#include "tests/mesh/float8_case.h"

namespace tokamak {
namespace {

constexpr int64_t kVocab = 2048;

constexpr Place kLeanPlaces[] = {
    {"one", {1, 1, 1, 1, 1}},
    {"fsdp", {1, 1, 2, 1, 1}},
    {"zero2", {1, 1, 4, 1, 1}, Sharding::kZero2},
    {"context", {1, 1, 1, 2, 1}, Sharding::kZero1, 2},
    {"tensor", {1, 1, 2, 1, 2}, Sharding::kZero1},
    {"pipeline", {2, 1, 2, 1, 1}, Sharding::kZero2, 4},
};

// Its head makes the peak, and its loss has several chunks of tokens.
MeshCase lean_case(const std::string& recipe, Place place, bool tied) {
  place.seq_len = 160;
  MeshCase c = mesh_case(recipe, place);
  c.model.tied = tied;
  c.model.vocab_size = kVocab;
  c.model.num_layers = 2;
  c.compute = DType::kBF16;
  c.steps = 2;
  return c;
}

class Float8Lean : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

// Ranks may decide unlike.
TEST_P(Float8Lean, has_the_same_bits) {
  const auto& [recipe, tied] = GetParam();
  for (const Place& place : kLeanPlaces) {
    MeshCase c = lean_case(recipe, place, tied);
    const MeshResult fast = run_mesh(c);
    c.lean_ranks = {0};
    expect_same_bits(run_mesh(c), fast, c);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, Float8Lean,
                         ::testing::Combine(::testing::Values("tensorwise", "delayed", "rowwise",
                                                              "rowwise_with_gw_hp", "blockwise"),
                                            ::testing::Bool()),
                         [](const auto& of) {
                           return std::string(std::get<0>(of.param)) +
                                  (std::get<1>(of.param) ? "_tied" : "");
                         });

struct HeadCodes {
  int made = 0;         // by microbatches
  int multiplied = 0;   // with them
  int64_t carried = 0;  // bytes
};

HeadCodes head_codes(const MeshCase& c) {
  const PlannedRun run(c.model, shape_of(c, 0), {});
  HeadCodes codes;
  for (const Segment& segment : run.plan().segments) {
    for (const Task& task : segment.tasks) {
      const bool is_head = task.label.block < 0 && task.label.phase == Phase::kForward;
      const auto is_weight = [](const Operand& o) {
        return std::count(o.type.dims.begin(), o.type.dims.end(), kVocab) == 1 &&
               std::count(o.type.dims.begin(), o.type.dims.end(), 64) == 1;
      };
      if (is_head && task.rules == &kRules<Quantize> && is_weight(task.in[0])) ++codes.made;
      if (is_head && task.rules == &kRules<ScaledMatmul> && is_weight(task.in[2]))
        ++codes.multiplied;
    }
  }
  codes.carried = run.plan().arena_bytes[ArenaKind::kCarried];
  return codes;
}

TEST(Float8LeanPlan, makes_codes_of_the_head_for_each_matmul) {
  for (const char* recipe : {"tensorwise", "delayed", "rowwise", "rowwise_with_gw_hp"}) {
    MeshCase c = lean_case(recipe, kLeanPlaces[0], true);
    const HeadCodes fast = head_codes(c);
    c.lean_ranks = {0};
    const HeadCodes lean = head_codes(c);
    EXPECT_GT(lean.multiplied, 2) << recipe;
    EXPECT_EQ(lean.multiplied, fast.multiplied) << recipe;
    EXPECT_EQ(lean.made, lean.multiplied) << recipe;
    EXPECT_LE(fast.made, 2) << recipe;
    if (fast.made > 0) continue;
    EXPECT_LE(lean.carried, fast.carried - kVocab * 64) << recipe;
  }
}

TEST(Float8LeanPlan, gathers_one_module_at_a_time) {
  MeshCase c = lean_case("rowwise", kLeanPlaces[2], false);
  c.model = flavor_spec("llama3", "8B");
  c.model.num_layers = 4;
  c.recompute.mode = Mode::kFull;
  c.seq_len = 2048;
  c.global_batch = 4;
  RunShape shape = shape_of(c, 0);
  const auto scratch_before = [&] {
    const PlannedRun run(c.model, shape, {.backend = "gpu", .arch = 90, .devices_per_host = 8});
    return scratch_bytes(run.plan().segments.front());
  };
  const int64_t lean = scratch_before();
  shape.trades_time = false;
  const int64_t block = 2 * (c.model.dim * 3 * c.model.mlp_dim);  // bytes, at least
  EXPECT_LT(lean, scratch_before() - block);
}

}  // namespace
}  // namespace tokamak
