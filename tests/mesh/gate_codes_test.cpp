// Gate and up kept as codes for the backward: recipes, meshes, recompute modes, memory.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/models/family.h"
#include "tokamak/ops/elementwise/swiglu.h"
#include "tokamak/ops/float8/fused_float8.h"

#include "tests/mesh/float8_case.h"

namespace tokamak {
namespace {

constexpr const char* kRecipes[] = {"tensorwise",         "by_module", "delayed",      "rowwise",
                                    "rowwise_with_gw_hp", "blockwise", "mxfp8_cublas", "nvfp4"};

MeshCase gate_case(const std::string& recipe, const Place& place, bool keeps_codes = true) {
  MeshCase c = mesh_case(recipe, place);
  c.float8->layers.keeps_gate_codes = keeps_codes;
  return c;
}

constexpr Place kOne{"one", {1, 1, 1, 1, 1}};
constexpr auto kGather = ContextMethod::kAllGather;
constexpr Place kGatePlaces[] = {
    {"replicas", {1, 2, 1, 1, 1}},
    {"shards", {1, 1, 2, 1, 1}},
    {"zero1", {1, 1, 2, 1, 1}, Sharding::kZero1, 2},
    {"accumulated", {1, 1, 2, 1, 1}, Sharding::kFsdp, 4},
    {"tensor", {1, 1, 1, 1, 2}},
    {"tensor_async", {1, 1, 1, 1, 2}, Sharding::kFsdp, 1, true},
    {"tensor_of_4", {1, 1, 1, 1, 4}},
    {"context_and_tensor", {1, 1, 1, 2, 2}},
    {"pipeline", {2, 1, 1, 1, 1}, Sharding::kFsdp, 4},
    {"interleaved", {2, 1, 1, 1, 1}, Sharding::kFsdp, 4, false, kGather, "Interleaved1F1B", 2},
    {"split", {2, 1, 1, 1, 1}, Sharding::kFsdp, 4, false, kGather, "InterleavedZeroBubble", 1},
    {"pipeline_of_all", {2, 1, 2, 1, 2}, Sharding::kFsdp, 4},
    {"uneven", {1, 1, 3, 1, 1}, Sharding::kFsdp, 1, false, kGather, "", 1, GradStore::kAuto, 7, 9},
};

// Returns how many layers' gradients of SwiGLU read codes.
int64_t layers_with_codes(const Plan& plan) {
  int64_t count = 0;
  for (const Segment& segment : plan.segments) {
    for (const Task& task : segment.tasks) {
      const AnyOp op{.rules = task.rules, .op = task.op};
      const auto* fused = op.as<FusedFloat8>();
      const auto* grad = (fused != nullptr ? fused->first : op).as<SwigluGrad>();
      const bool is_pass_before = fused != nullptr &&
                                  std::none_of(fused->readers.begin(), fused->readers.end(),
                                               [](const Float8Reader& r) {
                                                 return std::holds_alternative<Quantize>(r.op);
                                               }) &&
                                  fused->lone_maximum() == nullptr;
      if (grad != nullptr && grad->gates == GateInputs::kCodes && !is_pass_before) ++count;
    }
  }
  return count;
}

class GateCodesMesh : public ::testing::TestWithParam<std::tuple<Place, const char*>> {};

// The loss of the first step is that of a forward that the key leaves as it is.
TEST_P(GateCodesMesh, is_near_one_rank_and_leaves_the_forward) {
  const auto& [place, recipe] = GetParam();
  const MeshCase c = gate_case(recipe, place);
  EXPECT_GT(layers_with_codes(PlannedRun(c.model, shape_of(c, 0), {}).plan()), 0);
  MeshCase alone = c;
  alone.distribute = {};
  const MeshResult one = run_mesh(alone);
  const MeshResult mesh = run_mesh(c);
  expect_near_one_rank(mesh, one, c.float8->recipe);
  const MeshResult without = run_mesh(gate_case(recipe, place, false));
  EXPECT_EQ(mesh.loss[0], without.loss[0]);
  EXPECT_NE(mesh.grad_norm[0], without.grad_norm[0]);
  EXPECT_NEAR(mesh.grad_norm[0], without.grad_norm[0], 2e-2 * without.grad_norm[0]);
}

// Each mesh with every second recipe; Drawn/Float8List has others.
std::vector<std::tuple<Place, const char*>> half_of_all() {
  std::vector<std::tuple<Place, const char*>> pairs;
  for (size_t place = 0; place < std::size(kGatePlaces); ++place) {
    for (size_t i = place % 2; i < std::size(kRecipes); i += 2)
      pairs.emplace_back(kGatePlaces[place], kRecipes[i]);
  }
  return pairs;
}

INSTANTIATE_TEST_SUITE_P(Half, GateCodesMesh, ::testing::ValuesIn(half_of_all()),
                         [](const auto& of) {
                           return std::string(std::get<0>(of.param).name) + "_" +
                                  std::get<1>(of.param);
                         });

class GateCodes : public ::testing::TestWithParam<const char*> {};

// Modes that keep gate and up give the same bits, if they keep the maxima that codes of rows are
// made with; those that compute gate and up again, the bits of a run without codes.
TEST_P(GateCodes, have_the_same_bits_in_all_modes_that_keep_gate_and_up) {
  const RecomputePolicy keep_matmuls{
      .mode = Mode::kSelectiveOps,
      .saved_ops = {"attention", "linear", "scaled_matmul", "quantize"}};
  const RecomputePolicy keep_most{.mode = Mode::kMemoryBudget, .memory_budget = 1.0};
  for (const Place& place : {kOne, kGatePlaces[1], kGatePlaces[4], kGatePlaces[8]}) {
    MeshCase c = gate_case(GetParam(), place);
    const MeshResult kept = run_mesh(c);
    for (const RecomputePolicy& policy : {keep_matmuls, keep_most}) {
      c.recompute = policy;
      expect_same_bits(run_mesh(c), kept, c);
    }
    c.recompute = {.mode = Mode::kFull};
    EXPECT_EQ(layers_with_codes(PlannedRun(c.model, shape_of(c, 0), {}).plan()), 0);
    const MeshResult again = run_mesh(c);
    MeshCase without = gate_case(GetParam(), place, false);
    expect_same_bits(again, run_mesh(without), c);
    // Every second of the four layers keeps its values.
    c.recompute = {.mode = Mode::kSelectiveLayers, .every_nth_block = 2};
    const int64_t own = c.distribute.mesh.degrees[0] > 1 ? 1 : 2;
    EXPECT_EQ(layers_with_codes(PlannedRun(c.model, shape_of(c, 0), {}).plan()), own);
    run_mesh(c);
  }
}

TEST_P(GateCodes, have_the_same_bits_fused_and_apart) {
  for (const Place& place : {kOne, kGatePlaces[1], kGatePlaces[11]}) {
    MeshCase c = gate_case(GetParam(), place);
    c.compute = DType::kBF16;
    c.model.vocab_size = 4096;  // so that codes are made where values are
    const MeshResult fused = run_mesh(c);
    c.float8->recipe.fuses = false;
    expect_same_bits(run_mesh(c), fused, c);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, GateCodes, ::testing::ValuesIn(kRecipes),
                         [](const auto& of) { return std::string(of.param); });

// Without emission the product of the forward is kept, and gate and up are codes all the same.
TEST(GateCodesPlan, reads_codes_without_emission) {
  MeshCase c = gate_case("tensorwise", kOne);
  c.recompute.emit_on_backward = false;
  EXPECT_EQ(layers_with_codes(PlannedRun(c.model, shape_of(c, 0), {}).plan()), c.model.num_layers);
  MeshCase without = gate_case("tensorwise", kOne, false);
  EXPECT_EQ(run_mesh(c).loss[0], run_mesh(without).loss[0]);
}

TEST(GateCodesPlan, leaves_layers_in_the_compute_dtype) {
  MeshCase c = gate_case("tensorwise", kOne);
  c.float8->layers.bf16_at_start = 1;
  EXPECT_EQ(layers_with_codes(PlannedRun(c.model, shape_of(c, 0), {}).plan()),
            c.model.num_layers - 1);
  c.float8->layers.filter = [](const std::string& name, const Dims&) {
    return name.find("up_proj") != std::string::npos ? "bf16" : "";
  };
  EXPECT_THROW(PlannedRun(c.model, shape_of(c, 0), {}), Error);
}

TEST(GateCodesPlan, is_refused_without_a_gate) {
  MeshCase c = gate_case("tensorwise", kOne);
  c.model = small_llama();
  c.model.family = &family_of("gpt2");
  c.model.name = "gpt2";
  c.model.max_seq_len = 64;
  c.model.num_kv_heads = c.model.num_heads;
  c.model.mlp_dim = 96;
  c.model.vocab_size = 64;
  try {
    PlannedRun(c.model, shape_of(c, 0), {});
    FAIL() << "planned";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("quantize.linear.float8.keep_gate_up_in_fp8"),
              std::string::npos)
        << error.what();
  }
}

int64_t peak_of(const MeshCase& c) {
  return PlannedRun(c.model, shape_of(c, 0), {.backend = "gpu", .arch = 90}).peak_bytes();
}

// The plan is that of 3B on one GPU, with two sequences of 8192 tokens.
TEST(GateCodesMemory, is_9_GiB_less_than_in_bf16_for_3B) {
  MeshCase c = gate_case("tensorwise", kOne);
  c.model = flavor_spec("llama3", "3B");
  c.model.tied = false;
  c.compute = DType::kBF16;
  c.seq_len = 8192;
  c.global_batch = 2;
  MeshCase bf16 = c;
  bf16.float8.reset();
  const int64_t most = peak_of(bf16);
  for (const char* recipe :
       {"tensorwise", "delayed", "rowwise", "rowwise_with_gw_hp", "blockwise"}) {
    c.float8->recipe = *find_float8_recipe(recipe);
    c.float8->layers.filter = [](const std::string& name, const Dims&) {
      return name == kHeadWeight ? "bf16" : "";
    };
    EXPECT_GE(most - peak_of(c), int64_t{9} << 30) << recipe;
  }
}

// Layers that compute gate and up again take what they take without codes.
TEST(GateCodesMemory, is_the_same_where_gate_and_up_are_computed_again) {
  for (const char* recipe : {"tensorwise", "delayed", "rowwise", "blockwise"}) {
    MeshCase c = gate_case(recipe, kOne);
    c.model = flavor_spec("llama3", "1B");
    c.model.num_layers = 4;
    c.compute = DType::kBF16;
    c.seq_len = 4096;
    c.global_batch = 2;
    c.recompute.mode = Mode::kFull;
    MeshCase without = c;
    without.float8->layers.keeps_gate_codes = false;
    EXPECT_EQ(peak_of(c), peak_of(without)) << recipe;
  }
}

// Returns the norm of the difference of the gradients of parameters whose names contain `part`, in
// shares of the norm of those of `of`.
double gradient_error(const MeshResult& got, const MeshResult& of, const std::string& part) {
  double apart = 0.0;
  double norm = 0.0;
  for (const auto& [name, want] : of.first_moments) {
    if (name.find(part) == std::string::npos) continue;
    const std::vector<float>& mine = got.first_moments.at(name);
    for (size_t i = 0; i < want.size(); ++i) {
      apart += std::pow(static_cast<double>(mine[i]) - static_cast<double>(want[i]), 2.0);
      norm += std::pow(static_cast<double>(want[i]), 2.0);
    }
  }
  return std::sqrt(apart / norm);
}

// Gradients of one step in fp32, against those without codes of any kind; docs/float8.md has the
// table that this prints. E4M3 has 3 bits of a mantissa: errors of 2.6 % of a value in the mean.
TEST(GateCodesNumerics, add_to_gradients_less_than_the_codes_of_matmuls_do) {
  MeshCase c = gate_case("tensorwise", kOne);
  c.model.dim = 128;
  c.model.num_kv_heads = c.model.num_heads = 4;
  c.model.head_dim = 32;
  c.model.mlp_dim = 384;
  c.model.vocab_size = 256;
  c.seq_len = 64;
  c.steps = 1;
  MeshCase exact = c;
  exact.float8.reset();
  const MeshResult of = run_mesh(exact);
  const char* const parts[] = {"gate_proj", "up_proj", "down_proj", ""};
  fmt::print("{:19}{:>23}{:>23}{:>23}{:>23}\n", "without, with, added", "gate", "up", "down",
             "all");
  for (const char* recipe : {"tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise"}) {
    c.float8->recipe = *find_float8_recipe(recipe);
    c.float8->layers.keeps_gate_codes = false;
    const MeshResult without = run_mesh(c);
    c.float8->layers.keeps_gate_codes = true;
    const MeshResult with = run_mesh(c);
    fmt::print("{:20}", recipe);
    for (const char* part : parts) {
      const double before = gradient_error(without, of, part);
      const double after = gradient_error(with, of, part);
      const double added = gradient_error(with, without, part);
      fmt::print(" {:6.4f} {:6.4f} {:6.4f}  ", before, after, added);
      EXPECT_LT(after, 1.25 * before) << recipe << " " << part;
      EXPECT_LT(added, 0.08) << recipe << " " << part;
    }
    fmt::print("\n");
  }
}

}  // namespace
}  // namespace tokamak
