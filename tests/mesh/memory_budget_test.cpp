// Budgets for activations beside context parallelism, whose ranks attend to parts of unlike cost.
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/cpu/backend.h"

#include "tests/fixtures/mesh_expect.h"
#include "tests/fixtures/mesh_run.h"

namespace tokamak {
namespace {

struct BudgetCase {
  const char* name;
  ContextMethod method;
  MeshCoordinates degrees;
  int64_t window = 0;
};

// Heads are wide beside the rest of a block, so budgets give up attention, too.
ModelSpec long_heads_llama() {
  ModelSpec model = small_llama();
  model.dim = 32;
  model.num_heads = 6;
  model.num_kv_heads = 3;
  model.head_dim = 8;
  model.mlp_dim = 48;
  return model;
}

class MemoryBudget : public ::testing::TestWithParam<BudgetCase> {};

// Running a mesh checks that all ranks' collectives meet.
TEST_P(MemoryBudget, leaves_every_bit) {
  const BudgetCase& given = GetParam();
  for (const int64_t seq_len : {32, 13}) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      MeshCase c{.model = long_heads_llama(),
                 .compute = compute,
                 .seq_len = seq_len,
                 .global_batch = 8,
                 .num_microbatches = 2,
                 .steps = 2};
      if (given.window > 0) set_windows(c.model, given.window);
      c.distribute.mesh.degrees = given.degrees;
      c.distribute.context = given.method;
      const MeshResult saved = run_mesh(c);
      for (const double budget : {0.0, 0.2, 0.5, 0.8}) {
        SCOPED_TRACE(fmt::format("{} tokens, {}, budget {}", seq_len, name_of(compute), budget));
        c.recompute = {.mode = Mode::kMemoryBudget, .memory_budget = budget};
        const MeshResult again = run_mesh(c);
        EXPECT_EQ(again.loss, saved.loss);
        EXPECT_EQ(again.grad_norm, saved.grad_norm);
        EXPECT_EQ(again.parameters, saved.parameters);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, MemoryBudget,
    ::testing::Values(BudgetCase{"ring_cp2", ContextMethod::kRing, {1, 1, 1, 2, 1}},
                      BudgetCase{"ring_cp4", ContextMethod::kRing, {1, 1, 1, 4, 1}},
                      BudgetCase{"ring_cp2_tp3", ContextMethod::kRing, {1, 1, 1, 2, 3}},
                      BudgetCase{"ring_dp2_cp2", ContextMethod::kRing, {1, 1, 2, 2, 1}},
                      BudgetCase{"window_cp4", ContextMethod::kRing, {1, 1, 1, 4, 1}, 5},
                      BudgetCase{"all_gather_cp4", ContextMethod::kAllGather, {1, 1, 1, 4, 1}},
                      BudgetCase{"all_gather_cp3", ContextMethod::kAllGather, {1, 1, 1, 3, 1}},
                      BudgetCase{"ulysses_cp3", ContextMethod::kUlysses, {1, 1, 1, 3, 1}}),
    [](const auto& of) { return std::string(of.param.name); });

// Rings bring the parts of a sequence to each rank in another order, so ranks add up the costs of
// the same nodes in other orders. Values that cost the same must not be told apart by rounding.
TEST(MemoryBudgetRing, is_spent_alike_by_all_ranks) {
  const Target target = cpu::make_backend({.threads = 1})->target();
  for (const int cp : {2, 4}) {
    for (const int64_t mlp_dim : {256, 512, 768}) {
      for (double budget = 0.05; budget < 1.0; budget += 0.05) {
        MeshCase c{.model = small_llama(),
                   .recompute = {.mode = Mode::kMemoryBudget, .memory_budget = budget},
                   .compute = DType::kBF16,
                   .seq_len = 32,
                   .global_batch = 8,
                   .num_microbatches = 1};
        c.model.dim = 512;
        c.model.head_dim = 128;
        c.model.mlp_dim = mlp_dim;
        c.distribute.mesh.degrees = {1, 1, 1, cp, 1};
        c.distribute.context = ContextMethod::kRing;
        EXPECT_NO_THROW(check_all_ranks(c, target)) << describe(c) << " budget " << budget;
      }
    }
  }
}

}  // namespace
}  // namespace tokamak
