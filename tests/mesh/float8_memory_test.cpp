// The memory that plans for a GPU take with matmuls in 8-bit floats, against the same run in the
// compute dtype.
#include <algorithm>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tests/fixtures/draw.h"
#include "tests/fixtures/mesh_expect.h"

namespace tokamak {
namespace {

const Target kGpu{.backend = "gpu", .arch = 90, .devices_per_host = 8};

void set_float8(MeshCase& c, const std::string& recipe, bool has_head) {
  c.float8 = {.recipe = *find_float8_recipe(recipe),
              .layers = {.filter = [has_head](const std::string& name, const Dims&) {
                return has_head || name != kHeadWeight ? "" : "bf16";
              }}};
}

struct Drawn {
  MeshCase c;
  bool has_head = false;
};

Drawn drawn(int index) {
  Draw draw(number_from("TOK_MESH_SEED", 1), static_cast<uint64_t>(index));
  const bool is_gpt = draw.below(5) == 0;
  Drawn d;
  MeshCase& c = d.c;
  c.model = is_gpt ? flavor_spec("gpt2", draw.flip() ? "124M" : "1.5B")
                   : flavor_spec("llama3", draw.one_of<const char*>({"1B", "3B", "8B"}));
  c.model.num_layers = 4 + 2 * draw.below(3);
  if (is_gpt) c.model.vocab_size = 50304;
  c.compute = DType::kBF16;
  c.seq_len = is_gpt ? 1024 : draw.one_of<int64_t>({2048, 4096, 8192});
  MeshCoordinates& degrees = c.distribute.mesh.degrees;
  degrees = draw.one_of<MeshCoordinates>({{1, 1, 1, 1, 1},
                                          {1, 2, 1, 1, 1},
                                          {1, 1, 4, 1, 1},
                                          {1, 1, 8, 1, 1},
                                          {1, 2, 2, 1, 1},
                                          {1, 1, 1, 1, 2},
                                          {1, 1, 2, 1, 4},
                                          {1, 1, 1, 2, 1},
                                          {2, 1, 1, 1, 1},
                                          {2, 1, 2, 1, 1},
                                          {2, 1, 1, 1, 2}});
  c.distribute.sharding = draw.one_of({Sharding::kFsdp, Sharding::kZero1, Sharding::kZero2});
  c.num_microbatches = degrees[0] > 1 ? 4 : draw.one_of<int64_t>({1, 4});
  c.global_batch = c.num_microbatches * degrees[1] * degrees[2] * draw.one_of<int64_t>({1, 2, 4});
  if (degrees[0] > 1) {
    const bool is_interleaved = draw.flip();
    set_pipeline(c, is_interleaved ? "Interleaved1F1B" : "1F1B", is_interleaved ? 2 : 1);
  }
  c.recompute =
      draw.one_of<RecomputePolicy>({{},
                                    {.emit_on_backward = false},
                                    {.mode = Mode::kFull},
                                    {.mode = Mode::kSelectiveOps,
                                     .saved_ops = {"attention"},
                                     .halved_ops = {"linear", "scaled_matmul"}},
                                    {.mode = Mode::kSelectiveLayers, .every_nth_block = 2}});
  d.has_head = draw.flip();
  const bool has_blocks = !is_gpt && degrees[4] == 1;
  set_float8(c,
             draw.one_of<const char*>({"tensorwise", "tensorwise", "rowwise", "rowwise_with_gw_hp",
                                       has_blocks ? "blockwise" : "rowwise"}),
             d.has_head);
  return d;
}

// Returns the bytes by which a rank may exceed the compute dtype (docs/float8.md, "Memory").
int64_t allowance(const Drawn& d, int64_t peak) {
  const Float8Recipe& recipe = d.c.float8->recipe;
  const bool has_rows = recipe.w_of_y == ScaleGrid::kRows;
  const double share = !recipe.has_dw                        ? 0.08
                       : has_rows                            ? 0.04
                       : recipe.w_of_y == ScaleGrid::kBlocks ? 0.02
                                                             : 0.01;
  auto bytes = static_cast<int64_t>(share * static_cast<double>(peak));
  if (d.has_head && d.c.model.tied)
    bytes += d.c.model.vocab_size * d.c.model.dim * (has_rows ? 2 : 1) /
             d.c.distribute.mesh.degree(MeshAxis::kTp);
  return bytes;
}

int64_t peak(const MeshCase& c, int rank, bool has_float8) {
  RunShape shape = shape_of(c, rank);
  if (!has_float8) shape.float8.reset();
  return PlannedRun(c.model, shape, kGpu).peak_bytes();
}

void expect_no_more(const Drawn& d, const std::string& text) {
  const int last = d.c.distribute.mesh.size() - 1;
  for (const int rank : {0, last}) {
    const int64_t without = peak(d.c, rank, false);
    EXPECT_LE(peak(d.c, rank, true), without + allowance(d, without))
        << text << "rank " << rank << ", " << d.c.float8->recipe.name
        << (d.has_head ? ", head in float8" : "") << ": " << describe(d.c);
    if (last == 0) break;
  }
}

TEST(Float8Memory, is_near_that_of_the_compute_dtype_or_below_in_drawn_runs) {
  const int count = static_cast<int>(number_from("TOK_MESH_CASES", 40));
  for (int i = 0; i < count; ++i) expect_no_more(drawn(i), fmt::format("case {}, ", i));
}

TEST(Float8Memory, is_not_above_that_of_the_compute_dtype_for_8B_on_four_shards) {
  Drawn d{.c = {.model = flavor_spec("llama3", "8B"),
                .compute = DType::kBF16,
                .seq_len = 8192,
                .global_batch = 8}};
  d.c.distribute.mesh.degrees = {1, 1, 4, 1, 1};
  set_float8(d.c, "tensorwise", false);
  EXPECT_LE(peak(d.c, 0, true), peak(d.c, 0, false));
}

TEST(Float8Memory, is_not_above_that_of_the_compute_dtype_on_stages_of_a_tied_model) {
  for (const Mode mode : {Mode::kNone, Mode::kFull, Mode::kSelectiveLayers}) {
    Drawn d{.c = {.model = flavor_spec("llama3", "1B"),
                  .recompute = {.mode = mode, .every_nth_block = 2},
                  .compute = DType::kBF16,
                  .seq_len = 8192,
                  .global_batch = 16,
                  .num_microbatches = 16}};
    d.c.distribute.mesh.degrees = {2, 1, 1, 1, 1};
    set_pipeline(d.c, "1F1B", 1);
    set_float8(d.c, "tensorwise", false);
    for (const int rank : {0, 1})
      EXPECT_LE(peak(d.c, rank, true), peak(d.c, rank, false)) << "rank " << rank;
  }
}

}  // namespace
}  // namespace tokamak
