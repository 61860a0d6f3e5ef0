// Weights that travel as 8-bit quantized values: what is gathered, and that its bits are those of
// one rank.
#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "tokamak/ops/comm/collective.h"
#include "tokamak/ops/float8/quantize_ranges.h"

#include "tests/fixtures/mesh_expect.h"

namespace tokamak {
namespace {

MeshCase case_on(const MeshCoordinates& degrees, const std::string& recipe = "tensorwise") {
  MeshCase c{.model = small_llama(), .seq_len = 32, .global_batch = 8, .steps = 1};
  c.model.num_layers = 4;
  c.model.vocab_size = 64;
  c.model.dim = 64;
  c.model.num_kv_heads = 2;
  c.model.head_dim = 16;
  c.model.mlp_dim = 128;
  c.compute = DType::kBF16;
  c.distribute.mesh.degrees = degrees;
  c.float8 = {.recipe = *find_float8_recipe(recipe),
              .layers = {.filter = [](const std::string& name, const auto&) {
                return name == kHeadWeight ? "head" : "";
              }}};
  return c;
}

template <class T, class F>
void for_each_task(const Plan& plan, F&& f) {
  for (const Segment& segment : plan.segments) {
    for (const Task& task : segment.tasks) {
      if (task.rules == &kRules<T>) f(task, *static_cast<const T*>(task.op.get()));
    }
  }
}

// Elements that rank 0 gathers over its shards, by dtype, in one run of each segment.
std::map<DType, int64_t> gathered(const MeshCase& c) {
  const PlannedRun run(c.model, shape_of(c, 0), {});
  std::map<DType, int64_t> elements;
  for_each_task<AllGather>(run.plan(), [&](const Task& task, const AllGather& op) {
    if (run.plan().groups.entries[static_cast<size_t>(op.group.id)].purpose ==
        GroupPurpose::kGather)
      elements[task.out[0].type.dtype] += task.out[0].type.numel();
  });
  return elements;
}

// Quantized weights of a layer, and its other weights.
constexpr int64_t kMatrices = (64 + 2 * 32 + 64 + 3 * 128) * 64;
constexpr int64_t kVectors = 2 * 64;

int64_t outside_blocks(const MeshCase& c) {
  return 2 * c.model.vocab_size * c.model.dim + c.model.dim;
}

class Float8TravelAs : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Recipes, Float8TravelAs, ::testing::Values("tensorwise", "delayed"),
                         [](const auto& of) { return std::string(of.param); });

TEST_P(Float8TravelAs, gathers_matrices_quantized_and_the_rest_as_it_computes) {
  MeshCase c = case_on({1, 1, 2, 1, 1}, GetParam());
  const int64_t layers = c.model.num_layers;
  std::map<DType, int64_t> twice = gathered(c);
  EXPECT_EQ(twice[DType::kE4M3], 2 * layers * kMatrices);
  const int64_t rest = twice[DType::kBF16];
  EXPECT_GE(rest, 2 * layers * kVectors + outside_blocks(c));
  EXPECT_LE(rest, 2 * layers * (kVectors + 256) + outside_blocks(c) + 1024);
  EXPECT_EQ(twice.size(), 2U);
  c.distribute.sharding = Sharding::kZero1;
  EXPECT_EQ(gathered(c)[DType::kE4M3], layers * kMatrices);
  c.float8->recipe.from_master = true;
  EXPECT_EQ(gathered(c)[DType::kE4M3], layers * kMatrices);
  MeshCase rows = case_on({1, 1, 2, 1, 1}, "rowwise");
  EXPECT_EQ(gathered(rows)[DType::kE4M3], 0);
}

TEST(Float8Travel, leaves_filtered_weights_in_the_compute_dtype) {
  MeshCase c = case_on({1, 1, 2, 1, 1});
  const std::map<DType, int64_t> all = gathered(c);
  c.float8->layers.filter = [](const std::string& name, const Dims&) {
    const bool is_filtered = name.find("k_proj") != std::string::npos ||
                             name.find("v_proj") != std::string::npos || name == kHeadWeight;
    return is_filtered ? "filtered" : "";
  };
  std::map<DType, int64_t> some = gathered(c);
  const int64_t filtered = 2 * c.model.num_layers * 2 * 32 * 64;
  EXPECT_EQ(some[DType::kE4M3], all.at(DType::kE4M3) - filtered);
  EXPECT_EQ(some[DType::kBF16], all.at(DType::kBF16) + filtered);
}

TEST_P(Float8TravelAs, brings_the_head_quantized) {
  MeshCase c = case_on({1, 1, 2, 1, 1}, GetParam());
  std::map<DType, int64_t> without = gathered(c);
  c.float8->layers.filter = [](const auto&, const auto&) { return ""; };
  std::map<DType, int64_t> with = gathered(c);
  const int64_t head = c.model.vocab_size * c.model.dim;
  EXPECT_EQ(with[DType::kE4M3], without[DType::kE4M3] + head);
  EXPECT_LE(with[DType::kBF16], without[DType::kBF16] - head + 256);
  const double shards = run_mesh(c).loss[0];
  c.distribute.mesh.degrees = {1, 2, 1, 1, 1};
  EXPECT_EQ(run_mesh(c).loss[0], shards);
}

// Returns the plan of a run's first step.
const Plan& first_plan(const PlannedRun& run) {
  return run.plan_without_scales() != nullptr ? *run.plan_without_scales() : run.plan();
}

TEST_P(Float8TravelAs, takes_all_maxima_in_one_all_reduce) {
  for (const MeshCoordinates& degrees :
       {MeshCoordinates{1, 1, 2, 1, 1}, {1, 2, 2, 1, 2}, {1, 1, 2, 2, 1}}) {
    const MeshCase c = case_on(degrees, GetParam());
    const PlannedRun run(c.model, shape_of(c, 0), {});
    std::vector<Dims> maxima;
    for_each_task<AllReduce>(first_plan(run), [&](const Task& task, const AllReduce& op) {
      if (op.op == ReduceOp::kMax && task.label.phase == Phase::kUnshard)
        maxima.push_back(task.out[0].type.dims);
    });
    EXPECT_EQ(maxima, std::vector<Dims>(1, {4 * c.model.num_layers}));
  }
}

// Counts of gathers of activations over tp in blocks, by dtype.
std::map<DType, int> gathered_over_tp(const MeshCase& c) {
  const PlannedRun run(c.model, shape_of(c, 0), {});
  std::map<DType, int> count;
  for_each_task<AllGather>(run.plan(), [&](const Task& task, const AllGather& op) {
    const auto& group = run.plan().groups.entries[static_cast<size_t>(op.group.id)];
    if (task.label.block >= 0 && group.purpose != GroupPurpose::kGather)
      ++count[task.out[0].type.dtype];
  });
  return count;
}

TEST_P(Float8TravelAs, gathers_activations_over_tp_quantized) {
  MeshCase c = case_on({1, 1, 2, 1, 2}, GetParam());
  const auto layers = static_cast<int>(c.model.num_layers);
  const std::map<DType, int> both{{DType::kE4M3, 2 * layers}, {DType::kE5M2, 2 * layers}};
  EXPECT_EQ(gathered_over_tp(c), both);
  const PlannedRun run(c.model, shape_of(c, 0), {});
  int maxima = 0;
  for_each_task<AllReduce>(first_plan(run), [&](const Task& task, const AllReduce& op) {
    if (op.op == ReduceOp::kMax && task.label.block >= 0) ++maxima;
  });
  EXPECT_EQ(maxima, 4 * layers);
  const MeshResult kept = run_mesh(c);
  c.distribute.gather_again = true;
  const std::map<DType, int> again{{DType::kE4M3, 4 * layers}, {DType::kE5M2, 2 * layers}};
  EXPECT_EQ(gathered_over_tp(c), again);
  const MeshResult dropped = run_mesh(c);
  EXPECT_EQ(dropped.loss, kept.loss);
  EXPECT_EQ(dropped.parameters, kept.parameters);
  c.float8->recipe = *find_float8_recipe("rowwise");
  c.distribute.gather_again = false;
  EXPECT_EQ(gathered_over_tp(c), (std::map<DType, int>{{DType::kBF16, 4 * layers}}));
}

// Without sequence parallelism each rank quantizes the whole values by itself.
TEST_P(Float8TravelAs, gives_quantized_activations_the_bits_of_whole_values) {
  for (const MeshCoordinates& degrees :
       {MeshCoordinates{1, 1, 1, 1, 2}, {1, 1, 1, 1, 4}, {1, 1, 2, 1, 2}}) {
    MeshCase c = case_on(degrees, GetParam());
    const MeshResult quantized = run_mesh(c);
    c.distribute.sequence_parallel = false;
    EXPECT_EQ(gathered_over_tp(c).size(), 0U);
    const MeshResult whole = run_mesh(c);
    EXPECT_EQ(quantized.loss[0], whole.loss[0]);
    EXPECT_NEAR(quantized.grad_norm[0], whole.grad_norm[0], 1e-6 * whole.grad_norm[0]);
  }
}

struct Alike {
  const char* name;
  MeshCoordinates whole;   // whole weights on each rank
  MeshCoordinates shards;  // the same rows of data, but shares of weights
};

constexpr Alike kAlike[] = {{"two", {1, 2, 1, 1, 1}, {1, 1, 2, 1, 1}},
                            {"hybrid", {1, 4, 1, 1, 1}, {1, 2, 2, 1, 1}},
                            {"tensor", {1, 2, 1, 1, 2}, {1, 1, 2, 1, 2}},
                            {"tensor_of_4", {1, 2, 1, 1, 4}, {1, 1, 2, 1, 4}}};

// NOLINTNEXTLINE(readability-identifier-naming)
void PrintTo(const Alike& a, std::ostream* os) {
  *os << a.name;
}

class Float8TravelBits : public ::testing::TestWithParam<std::tuple<Alike, const char*>> {};

// Ranks with whole weights quantize these themselves, so a code or a scale that differs turns the
// first loss.
TEST_P(Float8TravelBits, are_those_of_whole_weights) {
  const auto& [meshes, recipe] = GetParam();
  for (const bool from_master : {false, true}) {
    MeshCase c = case_on(meshes.whole, recipe);
    c.float8->recipe.from_master = from_master;
    const MeshResult whole = run_mesh(c);
    c.distribute.mesh.degrees = meshes.shards;
    const MeshResult shards = run_mesh(c);
    EXPECT_EQ(shards.loss, whole.loss);
    EXPECT_NEAR(shards.grad_norm[0], whole.grad_norm[0], 1e-6 * whole.grad_norm[0]);
    c.steps = 3;
    const MeshResult twice = run_mesh(c);
    c.distribute.reshard = Reshard::kNever;
    const MeshResult once = run_mesh(c);
    EXPECT_EQ(once.loss, twice.loss);
    EXPECT_EQ(once.parameters, twice.parameters);
    for (const Sharding sharding : {Sharding::kZero1, Sharding::kZero2}) {
      c.distribute.sharding = sharding;
      EXPECT_EQ(run_mesh(c).loss, twice.loss);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, Float8TravelBits,
                         ::testing::Combine(::testing::ValuesIn(kAlike),
                                            ::testing::Values("tensorwise", "delayed")),
                         [](const auto& of) {
                           return std::string(std::get<0>(of.param).name) + "_" +
                                  std::get<1>(of.param);
                         });

// Both paths of rounding are chosen by the recipe, on any mesh.
TEST(Float8Travel, rounds_to_the_compute_dtype_only_without_fp8_all_gather) {
  MeshCase c = case_on({1, 1, 2, 1, 1});
  const double rounded = run_mesh(c).loss[0];
  c.float8->recipe.from_master = true;
  EXPECT_NE(run_mesh(c).loss[0], rounded);
}

}  // namespace
}  // namespace tokamak
