// Small models in few bits on a mesh of threads.
#pragma once

#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include "tests/fixtures/mesh_expect.h"

namespace tokamak {

/// A mesh, and how weights, microbatches and layers are laid over it.
struct Place {
  const char* name;
  MeshCoordinates degrees;
  Sharding sharding = Sharding::kFsdp;
  int64_t microbatches = 1;
  ContextMethod context = ContextMethod::kAllGather;
  const char* schedule = "1F1B";
  int chunks = 1;
  GradStore grad_store = GradStore::kAuto;
  int64_t seq_len = 32;
  int64_t global_batch = 8;
};

// NOLINTNEXTLINE(readability-identifier-naming)
inline void PrintTo(const Place& p, std::ostream* os) {
  *os << p.name;
}

/// Finds a recipe by its own name, or "powers_of_two" or "by_module", which are tensorwise.
inline Float8Recipe recipe_of(const std::string& name) {
  const bool is_own = name == "powers_of_two" || name == "by_module";
  Float8Recipe recipe = *find_float8_recipe(is_own ? "tensorwise" : name);
  if (name == "by_module") {  // the head is left out, too
    recipe.shares_scales = false;
    recipe.gradient = DType::kE4M3;
  }
  // They absorb noise of sums in another order.
  if (name != "tensorwise") recipe.power_of_two = true;
  return recipe;
}

/// Trains three steps of four layers.
inline MeshCase mesh_case(const std::string& recipe, const Place& place) {
  const bool wants_blocks = recipe == "blockwise";
  const bool is_mx = recipe_of(recipe).is_mx();
  const bool is_cut_in_four = place.degrees[4] == 4;  // then ranks of tp share key-value heads
  MeshCase c{.model = small_llama(),
             .seq_len = place.seq_len,
             .global_batch = place.global_batch,
             .num_microbatches = place.microbatches,
             .steps = 3};
  c.model.num_layers = 4;
  c.model.dim = wants_blocks ? 128 : 64;
  c.model.num_kv_heads = wants_blocks || is_mx ? 4 : 2;
  c.model.head_dim = wants_blocks ? 64 : 16;
  c.model.mlp_dim = wants_blocks ? 256 : is_mx ? 128 : 96;
  c.model.vocab_size = wants_blocks ? 256 : 64;
  if (is_cut_in_four) {
    c.model.num_kv_heads = 2;
    c.model.head_dim *= 2;
    c.model.mlp_dim = wants_blocks ? 512 : 128;
    c.model.vocab_size *= 2;
  }
  c.distribute.mesh.degrees = place.degrees;
  c.distribute.sharding = place.sharding;
  c.distribute.context = place.context;
  c.distribute.grad_store = place.grad_store;
  if (place.degrees[0] > 1) set_pipeline(c, place.schedule, place.chunks);
  const bool has_head = recipe != "by_module";
  c.float8 = {.recipe = recipe_of(recipe),
              .layers = {.filter = [has_head](const std::string& name, const Dims&) {
                return has_head || name != kHeadWeight ? "" : "bf16";
              }}};
  return c;
}

/// Expects what a mesh gives to be near what one rank does. Maxima are of a rank's own rows, so
/// quantized values differ a little: docs/float8.md.
inline void expect_near_one_rank(const MeshResult& mesh, const MeshResult& one) {
  EXPECT_NEAR(mesh.loss[0], one.loss[0], 1e-3 * one.loss[0]);
  EXPECT_NEAR(mesh.grad_norm[0], one.grad_norm[0], 2e-2 * one.grad_norm[0]);
  for (size_t t = 1; t < one.loss.size(); ++t)
    EXPECT_NEAR(mesh.loss[t], one.loss[t], 1e-2 * one.loss[t]) << "step " << t + 1;
}

}  // namespace tokamak
