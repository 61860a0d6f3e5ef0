// Many meshes, drawn at random over all axes and options, against one rank.
//
// TOK_MESH_SEED draws another list, TOK_MESH_COUNT its length; the name of a case is its whole
// recipe, and the seed with its number draws it again.
#include <cmath>
#include <exception>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/fixtures/draw.h"
#include "tests/fixtures/mesh_expect.h"
#include "tests/fixtures/mesh_run.h"
#include "tests/mesh/drawn_case.h"

namespace tokamak {
namespace {

ModelSpec draw_model(Draw& draw) {
  if (draw.flip()) {
    return {.family = &family_of("llama3"),
            .name = "llama",
            .flavor = "test",
            .vocab_size = draw.one_of<int64_t>({61, 64}),
            .dim = 32,
            .num_layers = draw.one_of<int64_t>({3, 4}),
            .num_heads = 6,
            .num_kv_heads = draw.one_of<int64_t>({1, 2, 3, 6}),
            .head_dim = 8,
            .mlp_dim = draw.one_of<int64_t>({44, 48}),
            .tied = draw.below(4) == 0};
  }
  const double dropout = draw.below(3) == 0 ? 0.1 : 0.0;
  return {.family = &family_of("gpt2"),
          .name = "gpt2",
          .flavor = "test",
          .vocab_size = 61,
          .dim = 40,
          .num_layers = 3,
          .num_heads = 5,
          .num_kv_heads = 5,
          .head_dim = 8,
          .mlp_dim = 44,
          .max_seq_len = 32,
          .tied = draw.below(4) != 0,
          .dropout = {.embedding = dropout, .residual = dropout}};
}

MeshCase list_case(uint64_t seed, uint64_t index) {
  Draw draw(seed, index);
  const ModelSpec model = draw_model(draw);
  MeshCase c = draw_case(draw, model);
  c.seed = seed * 1000 + index;
  return c;
}

uint64_t list_seed() {
  return number_from("TOK_MESH_SEED", 1);
}

class MeshList : public ::testing::TestWithParam<uint64_t> {};

TEST_P(MeshList, equals_one_rank) {
  const MeshCase c = list_case(list_seed(), GetParam());
  SCOPED_TRACE(describe(c));
  try {
    expect_as_one_rank(c);
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what();  // beside the trace, which an exception would not show
  }
}

// Rounding goes both ways: what differs between a mesh and one rank in bf16 has no sign.
TEST(MeshListBf16, differences_have_no_sign) {
  double sum = 0.0;
  double largest = 0.0;
  int count = 0;
  for (uint64_t i = 0; count < 24; ++i) {
    MeshCase c = list_case(list_seed() + 1000, i);
    if (c.distribute.mesh.size() > 8) continue;
    const double difference = bf16_signed_difference(c);
    sum += difference;
    largest = std::max(largest, std::abs(difference));
    ++count;
  }
  RecordProperty("mean", fmt::format("{:.3e}", sum / count));
  RecordProperty("largest", fmt::format("{:.3e}", largest));
  std::printf("bf16 over %d meshes: mean signed loss difference %.2e, largest %.2e\n", count,
              sum / count, largest);
  EXPECT_LT(std::abs(sum / count), largest / 3.0);
}

INSTANTIATE_TEST_SUITE_P(Drawn, MeshList,
                         ::testing::Range(uint64_t{0}, number_from("TOK_MESH_COUNT", 64)));

}  // namespace
}  // namespace tokamak
