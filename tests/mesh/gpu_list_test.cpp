// Plans for GPUs of models of real sizes on meshes drawn at random: they are sound, and all ranks'
// collectives meet.
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

namespace tokamak {
namespace {

ModelSpec draw_real_model(Draw& draw) {
  const bool is_gpt = draw.below(4) == 0;
  ModelSpec model = is_gpt ? flavor_spec("gpt2", draw.flip() ? "124M" : "1.5B")
                           : flavor_spec("llama3", draw.one_of<const char*>({"1B", "8B", "70B"}));
  model.num_layers = draw.one_of<int64_t>({3, 4, 6});
  if (is_gpt) model.vocab_size = 50304;
  if (is_gpt) model.max_seq_len = 4096;
  return model;
}

std::string draw_recipe(Draw& draw, const MeshCase& c, int arch) {
  const bool has_whole_blocks =
      c.model.name != "gpt2" && c.distribute.mesh.degree(MeshAxis::kTp) == 1;
  if (arch == 100 && draw.flip())
    return draw.one_of<std::string>({"mxfp8_cublas", "mxfp8_cublas_rceil"});
  return draw.one_of<std::string>({"", "", "tensorwise", "delayed", "rowwise", "rowwise_with_gw_hp",
                                   has_whole_blocks ? "blockwise" : "rowwise"});
}

class GpuList : public ::testing::TestWithParam<uint64_t> {};

TEST_P(GpuList, all_ranks_meet) {
  Draw draw(number_from("TOK_MESH_SEED", 1), GetParam());
  const ModelSpec model = draw_real_model(draw);
  MeshCase c = draw_case(draw, model);
  // A third of the heads or of an MLP would not be whole tiles in 8 bits.
  int& tp = c.distribute.mesh.degrees[MeshAxis::kTp];
  if (tp % 3 == 0) tp = 2;
  c.compute = DType::kBF16;
  c.seq_len = draw.one_of<int64_t>({2048, 2041, 4096});
  c.logits_multiple = 128;
  const int arch = draw.one_of({90, 90, 100});
  const std::string recipe = draw_recipe(draw, c, arch);
  const bool has_head = draw.flip();
  if (!recipe.empty()) {
    c.float8 = {.recipe = *find_float8_recipe(recipe),
                .layers = {.filter = [=](const std::string& name, const Dims&) {
                  return has_head || name != kHeadWeight ? "" : "bf16";
                }}};
  }
  SCOPED_TRACE(fmt::format("{} {}: {}", recipe, has_head, describe(c)));
  try {
    check_all_ranks(c, {.backend = "gpu",
                        .arch = arch,
                        .devices_per_host = draw.flip() ? c.distribute.mesh.size() : 0});
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Drawn, GpuList,
                         ::testing::Range(uint64_t{0}, number_from("TOK_MESH_COUNT", 24)));

}  // namespace
}  // namespace tokamak
