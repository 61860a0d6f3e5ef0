// Meshes and recipes of fp8 drawn at random together, against one rank.
//
// TOK_MESH_SEED draws another list, TOK_MESH_COUNT its length; a failure prints the whole recipe.
#include <exception>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/fixtures/draw.h"
#include "tests/fixtures/mesh_expect.h"
#include "tests/fixtures/mesh_run.h"
#include "tests/mesh/drawn_case.h"
#include "tests/mesh/float8_case.h"

namespace tokamak {
namespace {

// All matmuls, also their parts on ranks of tp, have dims that the recipe takes.
ModelSpec draw_wide_model(Draw& draw, bool wants_blocks) {
  ModelSpec model = small_llama();
  if (draw.flip()) {
    model.family = &family_of("gpt2");
    model.name = "gpt2";
    model.max_seq_len = 64;
  }
  const int64_t unit = wants_blocks ? 128 : 32;
  model.num_layers = draw.one_of<int64_t>({2, 3, 4});
  model.dim = (model.name == "gpt2" ? 4 : draw.one_of<int64_t>({2, 4})) * unit;
  model.num_heads = 4;
  model.num_kv_heads = model.name == "gpt2" ? 4 : draw.one_of<int64_t>({1, 2, 4});
  model.head_dim = unit;
  model.mlp_dim = draw.one_of<int64_t>({4, 8}) * unit;
  model.vocab_size = 4 * unit;
  model.tied = draw.flip();
  return model;
}

struct Drawn {
  std::string recipe;
  MeshCase run;
};

Drawn draw_float8(uint64_t seed, uint64_t index) {
  Draw draw(seed, index);
  const auto recipe = draw.one_of<std::string>({"powers_of_two", "by_module", "delayed", "rowwise",
                                                "rowwise_with_gw_hp", "blockwise", "mxfp8_cublas"});
  const ModelSpec model = draw_wide_model(draw, recipe == "blockwise");
  Drawn drawn{.recipe = recipe, .run = draw_case(draw, model)};
  MeshCase& c = drawn.run;
  c.seed = seed * 1000 + index;
  c.steps = 3;
  // A third of 4 heads would not be whole tiles.
  int& tp = c.distribute.mesh.degrees[MeshAxis::kTp];
  if (tp == 3) tp = 2;
  const bool has_head = recipe != "by_module" && draw.flip();
  const bool has_attention = draw.below(4) != 0;
  c.float8 = {.recipe = recipe_of(recipe),
              .layers = {.filter = [=](const std::string& name, const Dims&) {
                if (name == kHeadWeight) return has_head ? "" : "bf16";
                return has_attention || name.find("mlp") != std::string::npos ? "" : "attention";
              }}};
  return drawn;
}

class Float8List : public ::testing::TestWithParam<uint64_t> {};

TEST_P(Float8List, is_near_one_rank) {
  const Drawn drawn = draw_float8(number_from("TOK_MESH_SEED", 1), GetParam());
  const MeshCase& c = drawn.run;
  SCOPED_TRACE(fmt::format("{}: {}", drawn.recipe, describe(c)));
  try {
    MeshCase alone = c;
    alone.distribute = {};
    const MeshResult one = run_mesh(alone);
    expect_near_one_rank(run_mesh(c), one);
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Drawn, Float8List,
                         ::testing::Range(uint64_t{0}, number_from("TOK_MESH_COUNT", 40)));

}  // namespace
}  // namespace tokamak
