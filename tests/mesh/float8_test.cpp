// Matmuls in 8-bit floats: meshes against one rank, recompute modes against each other, what is
// refused.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/models/family.h"
#include "tokamak/ops/elementwise/gelu.h"
#include "tokamak/ops/float8/fused_float8.h"
#include "tokamak/ops/float8/scaled_matmul.h"
#include "tokamak/ops/float8/transpose_quantized.h"
#include "tokamak/ops/matmul/linear.h"

#include "tests/mesh/float8_case.h"

namespace tokamak {
namespace {

constexpr Place kPlaces[] = {
    {"replicas", {1, 2, 1, 1, 1}},
    {"shards", {1, 1, 2, 1, 1}},
    {"four_shards", {1, 1, 4, 1, 1}},
    {"hybrid", {1, 2, 2, 1, 1}},
    {"zero1", {1, 1, 2, 1, 1}, Sharding::kZero1, 2},
    {"zero2", {1, 1, 2, 1, 1}, Sharding::kZero2, 2},
    {"accumulated", {1, 1, 2, 1, 1}, Sharding::kFsdp, 4},
    {"tensor", {1, 1, 1, 1, 2}},
    {"shards_and_tensor", {1, 1, 2, 1, 2}},
    {"context", {1, 1, 1, 2, 1}},
    {"context_ring", {1, 1, 1, 2, 1}, Sharding::kFsdp, 1, ContextMethod::kRing},
    {"context_and_tensor", {1, 1, 1, 2, 2}},
    {"pipeline", {2, 1, 1, 1, 1}, Sharding::kFsdp, 4},
    {"interleaved", {2, 1, 1, 1, 1}, Sharding::kFsdp, 4, {}, "Interleaved1F1B", 2},
    {"zero_bubble", {2, 1, 1, 1, 1}, Sharding::kFsdp, 4, {}, "ZBVZeroBubble", 2},
    {"pipeline_of_all", {2, 1, 2, 1, 2}, Sharding::kFsdp, 4},
};

constexpr auto kAll = ContextMethod::kAllGather;
constexpr Place kMorePlaces[] = {
    {"tensor_of_4", {1, 1, 1, 1, 4}},
    {"context_ulysses", {1, 1, 1, 2, 1}, Sharding::kFsdp, 1, ContextMethod::kUlysses},
    {"split", {2, 1, 1, 1, 1}, Sharding::kFsdp, 4, kAll, "InterleavedZeroBubble", 1},
    {"full", {1, 1, 2, 1, 1}, Sharding::kFsdp, 4, kAll, "", 1, GradStore::kFull},
    {"sharded", {1, 1, 2, 1, 1}, Sharding::kFsdp, 4, kAll, "", 1, GradStore::kSharded},
    // Neither ranks nor microbatches have whole groups of 16 tokens.
    {"uneven", {1, 1, 3, 1, 1}, Sharding::kFsdp, 1, kAll, "", 1, GradStore::kAuto, 7, 9},
};

const MeshResult& of_one_rank(const std::string& recipe, MeshCase c) {
  static std::map<std::string, MeshResult> known;
  c.distribute = {};
  const auto [at, is_new] = known.try_emplace(fmt::format(
      "{} {} {} {} {}", recipe, c.model.head_dim, c.seq_len, c.global_batch, c.num_microbatches));
  if (is_new) at->second = run_mesh(c);
  return at->second;
}

class Float8Mesh : public ::testing::TestWithParam<std::tuple<Place, const char*>> {};

TEST_P(Float8Mesh, is_near_one_rank) {
  const auto& [place, recipe] = GetParam();
  const MeshCase c = mesh_case(recipe, place);
  const MeshResult& one = of_one_rank(recipe, c);
  expect_near_one_rank(run_mesh(c), one);
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, Float8Mesh,
    ::testing::Combine(::testing::ValuesIn(kPlaces),
                       ::testing::Values("powers_of_two", "by_module", "delayed", "rowwise",
                                         "rowwise_with_gw_hp", "blockwise", "mxfp8_cublas")),
    [](const auto& of) {
      return std::string(std::get<0>(of.param).name) + "_" + std::get<1>(of.param);
    });

INSTANTIATE_TEST_SUITE_P(More, Float8Mesh,
                         ::testing::Combine(::testing::ValuesIn(kMorePlaces),
                                            ::testing::Values("powers_of_two", "delayed",
                                                              "rowwise")),
                         [](const auto& of) {
                           return std::string(std::get<0>(of.param).name) + "_" +
                                  std::get<1>(of.param);
                         });

// Each rank of tp then has the key-value head of some others, and part of the rows of its gradient
// where all share one.
TEST(Float8KeyValueHeads, shared_by_ranks_give_what_one_rank_does) {
  for (const int64_t heads : {1, 2}) {
    for (const Place& place :
         {Place{"tensor", {1, 1, 1, 1, 4}}, Place{"context", {1, 1, 1, 2, 4}}}) {
      for (const char* recipe : {"powers_of_two", "by_module", "delayed", "rowwise",
                                 "rowwise_with_gw_hp", "blockwise", "mxfp8_cublas"}) {
        MeshCase c = mesh_case(recipe, place);
        c.model.num_kv_heads = heads;
        ASSERT_TRUE(c.distribute.merge_matmuls);
        MeshCase alone = c;
        alone.distribute = {};
        SCOPED_TRACE(fmt::format("{} {} {}", heads, place.name, recipe));
        const MeshResult one = run_mesh(alone);
        expect_near_one_rank(run_mesh(c), one);
      }
    }
  }
}

// A gathered bucket is freed once its weights are quantized; those that are not outlive it.
TEST(Float8Buckets, gather_weights_of_which_some_weights_are_left_out) {
  for (const Sharding sharding : {Sharding::kZero1, Sharding::kFsdp}) {
    MeshCase c = mesh_case("powers_of_two", {"", {1, 1, 2, 1, 1}, sharding, 2});
    c.compute = DType::kBF16;
    c.distribute.reshard = Reshard::kNever;
    c.float8->layers.filter = [](const std::string& name, const Dims&) {
      return name.find("k_proj") != std::string::npos || name.find("up_proj") != std::string::npos
                 ? "bf16"
                 : "";
    };
    MeshCase alone = c;
    alone.distribute = {};
    const MeshResult one = run_mesh(alone);
    const MeshResult mesh = run_mesh(c);
    EXPECT_NEAR(mesh.loss[0], one.loss[0], 1e-3 * one.loss[0]);
    EXPECT_NEAR(mesh.grad_norm[0], one.grad_norm[0], 2e-2 * one.grad_norm[0]);
    for (size_t t = 1; t < one.loss.size(); ++t)
      EXPECT_NEAR(mesh.loss[t], one.loss[t], 1e-2 * one.loss[t]) << "step " << t + 1;
  }
}

// Quantized values that are kept in both layouts are those that would be transposed.
TEST(Float8Weights, leave_every_bit_where_both_layouts_are_kept) {
  for (const char* recipe : {"tensorwise", "delayed", "rowwise", "blockwise"}) {
    for (const Place& place :
         {Place{"one", {1, 1, 1, 1, 1}}, Place{"zero1", {1, 1, 2, 1, 1}, Sharding::kZero1, 2},
          Place{"fsdp", {1, 1, 2, 1, 1}, Sharding::kFsdp, 2},
          Place{"pipeline", {2, 1, 2, 1, 2}, Sharding::kFsdp, 4}}) {
      MeshCase c = mesh_case(recipe, place);
      const MeshResult transposed = run_mesh(c);
      c.float8->recipe.keeps_transposed = true;
      expect_same_bits(run_mesh(c), transposed, c);
    }
  }
}

// Then no microbatch transposes a weight; each code of a weight is there twice.
TEST(Float8Weights, are_transposed_once_a_step_where_both_layouts_are_kept) {
  for (const char* recipe : {"tensorwise", "delayed"}) {
    MeshCase c = mesh_case(recipe, {"pipeline", {2, 1, 2, 1, 2}, Sharding::kFsdp, 4});
    const auto transposes = [&](Segment::Runs when) {
      const PlannedRun run(c.model, shape_of(c, 0), {});
      int64_t count = 0;
      for (const Segment& segment : run.plan().segments) {
        if (segment.runs != when) continue;
        count += std::count_if(segment.tasks.begin(), segment.tasks.end(), [](const Task& t) {
          return t.rules == &kRules<TransposeQuantized>;
        });
      }
      return count;
    };
    const int64_t each_time = transposes(Segment::Runs::kPerMicrobatch);
    EXPECT_EQ(transposes(Segment::Runs::kOnceBefore), 0);
    c.float8->recipe.keeps_transposed = true;
    const int64_t once = transposes(Segment::Runs::kOnceBefore);
    EXPECT_EQ(once, 4 * 2);  // of two layers
    EXPECT_EQ(transposes(Segment::Runs::kPerMicrobatch), each_time - once);
  }
}

class Float8Recompute : public ::testing::TestWithParam<const char*> {};

TEST_P(Float8Recompute, has_the_same_bits_in_all_modes) {
  const std::vector<RecomputePolicy> policies{
      {.emit_on_backward = false},
      {.mode = Mode::kFull},
      {.mode = Mode::kSelectiveOps,
       .saved_ops = {"attention"},
       .halved_ops = {"linear", "scaled_matmul"}},
      {.mode = Mode::kSelectiveLayers, .every_nth_block = 2},
      {.mode = Mode::kMemoryBudget, .memory_budget = 0.4},
      {.mode = Mode::kSelectiveLayers, .every_nth_block = 4, .emit_on_backward = false}};
  for (const Place& place : {Place{"one", {1, 1, 1, 1, 1}}, kPlaces[0], kPlaces[1], kPlaces[8]}) {
    MeshCase c = mesh_case(GetParam(), place);
    const MeshResult saved = run_mesh(c);
    for (const RecomputePolicy& policy : policies) {
      c.recompute = policy;
      const MeshResult again = run_mesh(c);
      EXPECT_EQ(again.loss, saved.loss) << place.name;
      EXPECT_EQ(again.grad_norm, saved.grad_norm) << place.name;
      EXPECT_EQ(again.parameters, saved.parameters) << place.name;
    }
  }
}

TEST_P(Float8Recompute, has_the_same_bits_fused_and_apart) {
  for (const Place& place : {Place{"one", {1, 1, 1, 1, 1}}, kPlaces[1], kPlaces[8], kPlaces[14]}) {
    for (const Mode mode : {Mode::kNone, Mode::kFull}) {
      MeshCase c = mesh_case(GetParam(), place);
      c.compute = DType::kBF16;
      c.model.vocab_size = 4096;  // so that quantized values are made where values are
      c.recompute.mode = mode;
      const MeshResult fused = run_mesh(c);
      c.float8->recipe.fuses = false;
      const MeshResult apart = run_mesh(c);
      EXPECT_EQ(fused.loss, apart.loss) << place.name;
      EXPECT_EQ(fused.grad_norm, apart.grad_norm) << place.name;
      EXPECT_EQ(fused.parameters, apart.parameters) << place.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, Float8Recompute,
                         ::testing::Values("tensorwise", "by_module", "delayed", "rowwise",
                                           "rowwise_with_gw_hp", "blockwise", "mxfp8_rceil"),
                         [](const auto& of) { return std::string(of.param); });

template <class T>
int64_t count_tasks(const Plan& plan) {
  int64_t count = 0;
  for (const Segment& segment : plan.segments) {
    count += std::count_if(segment.tasks.begin(), segment.tasks.end(),
                           [](const Task& t) { return t.rules == &kRules<T>; });
  }
  return count;
}

TEST(Float8Plan, replaces_every_matmul_of_blocks_and_head) {
  const MeshCase c = mesh_case("tensorwise", {"", {1, 1, 1, 1, 1}});
  const PlannedRun run(c.model, shape_of(c, 0), {});
  const auto layers = c.model.num_layers;
  constexpr int64_t kOfHead = 3 * 2;  // 256 tokens in chunks of 128
  EXPECT_EQ(count_tasks<ScaledMatmul>(run.plan()), 3 * 7 * layers + kOfHead);
  EXPECT_EQ(run.precision_line(),
            "float8: tensorwise, 16 matmuls, head in float8; scales per matmul");
  MeshCase some = c;
  some.float8->recipe = recipe_of("rowwise_with_gw_hp");
  some.float8->layers.filter = [](const std::string& name, const Dims&) {
    return name.find("mlp") == std::string::npos ? "attention" : "";
  };
  const PlannedRun part(some.model, shape_of(some, 0), {});
  EXPECT_EQ(count_tasks<ScaledMatmul>(part.plan()), 2 * 3 * layers);
  EXPECT_EQ(part.precision_line(),
            "float8: rowwise_with_gw_hp, 8 matmuls, head in float32; scales per matmul");
  MeshCase inner = c;
  inner.float8->layers.bf16_at_start = 1;
  inner.float8->layers.bf16_at_end = 2;
  const PlannedRun inside(inner.model, shape_of(inner, 0), {});
  EXPECT_EQ(count_tasks<ScaledMatmul>(inside.plan()), 3 * 7 * (layers - 3) + kOfHead);
}

// Recomputing saves in 8 bits what it saves in bf16, on one rank, DDP and FSDP.
TEST(Float8Plan, takes_less_memory_with_recompute) {
  const Target target{.backend = "gpu", .arch = 100};
  for (const char* recipe : {"tensorwise", "delayed", "rowwise", "mxfp8_cublas"}) {
    for (const Place& place : {Place{"one", {1, 1, 1, 1, 1}}, kPlaces[0], kPlaces[1]}) {
      MeshCase c = mesh_case(recipe, place);
      c.compute = DType::kBF16;
      c.model.mlp_dim = 512;
      c.seq_len = 512;
      const auto saved_by = [&](const RecomputePolicy& policy) {
        c.recompute = {};
        const int64_t kept = PlannedRun(c.model, shape_of(c, 0), target).peak_bytes();
        c.recompute = policy;
        return kept - PlannedRun(c.model, shape_of(c, 0), target).peak_bytes();
      };
      const RecomputePolicy ops{.mode = Mode::kSelectiveOps,
                                .saved_ops = {"attention"},
                                .halved_ops = {"linear", "scaled_matmul"}};
      for (const RecomputePolicy& policy :
           {ops, RecomputePolicy{.mode = Mode::kSelectiveLayers, .every_nth_block = 2},
            RecomputePolicy{.mode = Mode::kFull}}) {
        c.float8 = mesh_case(recipe, place).float8;
        const int64_t saved = saved_by(policy);
        c.float8.reset();
        const int64_t in_bf16 = saved_by(policy);
        EXPECT_GT(in_bf16, 0);
        EXPECT_GE(static_cast<double>(saved), 0.8 * static_cast<double>(in_bf16))
            << recipe << " " << place.name;
      }
    }
  }
}

// A rank with buckets has merged matmuls, whose inputs are packed. Maxima of weights and of what
// attention returns stay apart.
TEST(Float8Plan, takes_maxima_where_values_are_made) {
  const auto tasks = [](const char* recipe, bool fuses, bool has_scales = true) {
    MeshCase c = mesh_case(recipe, kPlaces[1]);
    // The head needs most memory, so quantized values may take more than values.
    c.model.vocab_size = 4096;
    c.float8->recipe.fuses = fuses;
    const PlannedRun run(c.model, shape_of(c, 0), {});
    const Plan& plan = has_scales ? run.plan() : *run.plan_without_scales();
    return std::array{count_tasks<Amax>(plan), count_tasks<Quantize>(plan),
                      count_tasks<FusedFloat8>(plan), plan.peak_bytes()};
  };
  const int64_t layers = mesh_case("tensorwise", kPlaces[1]).model.num_layers;
  const auto apart = tasks("tensorwise", false);
  const auto fused = tasks("tensorwise", true);
  EXPECT_EQ(apart[2], 0);
  // Both norms, SwiGLU, its gradient, and the gradients that reach o, down and q, k and v.
  EXPECT_EQ(apart[0] - fused[0], 7 * layers);
  // The gradients of gate and up, and the product of which they are.
  EXPECT_EQ(apart[1] - fused[1], 2 * layers);
  EXPECT_EQ(fused[2], 8 * layers);
  EXPECT_LE(fused[3], apart[3]);
  // Both norms and SwiGLU make quantized values under the table's scale, after a pass for want of
  // one; so does the gradient of SwiGLU.
  const auto delayed = tasks("delayed", true, false);
  const auto delayed_apart = tasks("delayed", false, false);
  EXPECT_EQ(delayed[2], 2 * 4 * layers);
  EXPECT_EQ(delayed_apart[0] - delayed[0], 4 * layers);
  EXPECT_EQ(delayed_apart[1] - delayed[1], 5 * layers);
  const auto scaled = tasks("delayed", true);
  EXPECT_EQ(scaled[0], 0);
  EXPECT_EQ(scaled[1], delayed[1]);
  EXPECT_EQ(scaled[2], 4 * layers);
  // Both norms and SwiGLU, and two passes of its gradient; one makes quantized values of segments.
  EXPECT_EQ(tasks("rowwise", true)[2], 5 * layers);
  EXPECT_EQ(tasks("blockwise", true)[2], 4 * layers);
}

// Biases read the gradient of GELU too, so its values are stored beside their quantized values.
TEST(Float8Plan, quantizes_the_gradient_of_gelu) {
  for (const Place& place : {kPlaces[1], kPlaces[7]}) {
    MeshCase c = mesh_case("delayed", place);
    c.model.family = &family_of("gpt2");
    c.model.num_kv_heads = 4;
    c.model.max_seq_len = c.seq_len;
    c.model.vocab_size = 4096;
    c.compute = DType::kBF16;
    const Plan plan = PlannedRun(c.model, shape_of(c, 0), {}).plan();
    int quantized = 0;
    for (const Segment& segment : plan.segments) {
      for (const Task& task : segment.tasks) {
        if (task.rules != &kRules<FusedFloat8>) continue;
        const auto& op = *static_cast<const FusedFloat8*>(task.op.get());
        if (op.first.as<GeluGrad>() != nullptr && op.stores == std::vector<bool>{true, false})
          ++quantized;
      }
    }
    EXPECT_EQ(quantized, c.model.num_layers) << place.name;
    const MeshResult fused = run_mesh(c);
    c.float8->recipe.fuses = false;
    const MeshResult apart = run_mesh(c);
    EXPECT_EQ(fused.loss, apart.loss) << place.name;
    EXPECT_EQ(fused.grad_norm, apart.grad_norm) << place.name;
    EXPECT_EQ(fused.parameters, apart.parameters) << place.name;
  }
}

TEST(Float8Plan, names_what_does_not_fit) {
  const auto message = [](const MeshCase& c, const Target& target) -> std::string {
    try {
      const PlannedRun run(c.model, shape_of(c, 0), target);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  MeshCase narrow = mesh_case("tensorwise", {"", {1, 1, 1, 1, 2}});
  narrow.model.mlp_dim = 80;
  EXPECT_NE(message(narrow, {})
                .find("layer 0: a float8 matmul has 64 x 40 weights on a rank, wanted "
                      "multiples of 16"),
            std::string::npos)
      << message(narrow, {});
  MeshCase short_head = mesh_case("tensorwise", {"", {1, 1, 1, 1, 2}});
  short_head.model.vocab_size = 48;
  EXPECT_EQ(message(short_head, {}),
            "model.converters: the head: a float8 matmul has 24 x 64 weights on a rank, wanted "
            "multiples of 16; lower parallelism.tensor_parallel_degree or name \"output\" in "
            "quantize.linear.float8.filter_fqns");
  const MeshCase old = mesh_case("tensorwise", {"", {1, 1, 1, 1, 1}});
  EXPECT_EQ(message(old, {.backend = "gpu", .arch = 80}),
            "model.converters: fp8 matmuls want sm_89 or newer, this is sm_80; "
            "quantize.linear.float8.emulate = true computes them in fp32");
  MeshCase none = old;
  none.float8->layers.filter = [](const auto&, const auto&) { return "not this one"; };
  EXPECT_EQ(message(none, {}),
            "model.converters: no matmul of this model is in float8; float8: "
            "model.layers.0.self_attn.q_proj.weight stays in the compute dtype: not this one");
}

}  // namespace
}  // namespace tokamak
