// Families of models whose blocks differ from Llama's: each axis of a mesh equals one rank.
#include <gtest/gtest.h>

#include "tests/fixtures/mesh_expect.h"

namespace tokamak {
namespace {

ModelSpec model_of(const std::string& name) {
  ModelSpec model = small_llama();
  model.name = name;
  if (name == "qwen2") model.attention.bias = true;
  if (name == "qwen3") model.attention.qk_norm = true;
  if (name == "mistral") model.attention.windows.assign(model.num_layers, 5);
  if (name == "mixed_windows") model.attention.windows = {0, 7, 2};
  if (name == "gemma2") {
    model.tied = model.branch_norm = model.zero_centered_norms = true;
    model.attention.windows = {4, 0, 4};
    model.attention.score_cap = 0.5;
    model.logit_cap = 0.3;
  }
  if (name == "gemma3") {
    model.tied = model.attention.qk_norm = model.branch_norm = true;
    model.zero_centered_norms = model.scale_embedding = true;
    model.gate = GateKind::kGelu;
    model.attention.query_scalar = 13.0;
    model.attention.windows = {4, 4, 0};
    model.attention.window_rope = RotarySpec{.theta = 300.0};
  }
  return model;
}

struct FamilyAxis {
  const char* name;
  MeshCoordinates degrees;
};

class FamiliesOnMesh : public ::testing::TestWithParam<std::tuple<const char*, FamilyAxis>> {
 protected:
  static MeshCase mesh_case() {
    const auto& [name, axis] = GetParam();
    MeshCase c{.model = model_of(name), .seq_len = 16, .global_batch = 8, .num_microbatches = 2};
    c.distribute.mesh.degrees = axis.degrees;
    if (axis.degrees[0] > 1) set_pipeline(c, "1F1B", 1);
    return c;
  }
};

TEST_P(FamiliesOnMesh, train_as_one_rank) {
  expect_as_one_rank(mesh_case());
}

TEST_P(FamiliesOnMesh, gradients_are_those_of_one_rank) {
  expect_gradients_as_one_rank(mesh_case());
}

TEST_P(FamiliesOnMesh, recompute_changes_nothing) {
  MeshCase c = mesh_case();
  c.recompute = {.mode = RecomputePolicy::Mode::kFull};
  expect_as_one_rank(c);
}

// Every way of context parallelism. The ring gathers keys where there are windows, which must not
// cross the messages of layers without one.
TEST(WindowsOnMesh, every_context_method_equals_one_rank) {
  for (const ContextMethod method :
       {ContextMethod::kAllGather, ContextMethod::kRing, ContextMethod::kUlysses}) {
    for (const int cp : {2, 4}) {
      MeshCase c{.model = model_of("mixed_windows"), .seq_len = 32, .global_batch = 2};
      c.distribute.mesh.degrees = {1, 1, 1, cp, 1};
      c.distribute.context = method;
      SCOPED_TRACE(describe(c));
      expect_as_one_rank(c);
      expect_gradients_as_one_rank(c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Each, FamiliesOnMesh,
    ::testing::Combine(
        ::testing::Values("qwen2", "qwen3", "mistral", "mixed_windows", "gemma2", "gemma3"),
        ::testing::Values(FamilyAxis{"pp", {2, 1, 1, 1, 1}}, FamilyAxis{"fsdp", {1, 1, 2, 1, 1}},
                          FamilyAxis{"cp", {1, 1, 1, 2, 1}}, FamilyAxis{"tp", {1, 1, 1, 1, 2}},
                          FamilyAxis{"fsdp_cp_tp", {1, 1, 2, 2, 4}})),
    [](const auto& test) {
      return fmt::format("{}_{}", std::get<0>(test.param), std::get<1>(test.param).name);
    });

}  // namespace
}  // namespace tokamak
