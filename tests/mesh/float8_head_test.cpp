// The language-model head in 8-bit floats: meshes against one rank, what a step quantizes, memory,
// what is refused and said.
#include <algorithm>
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/ops/float8/quantize.h"
#include "tokamak/ops/float8/scaled_matmul.h"
#include "tokamak/ops/float8/transpose_quantized.h"
#include "tokamak/ops/vocab/cross_entropy.h"

#include "tests/fixtures/mesh_expect.h"

namespace tokamak {
namespace {

struct HeadCase {
  const char* name;
  const char* family;
  bool tied = false;
  MeshCoordinates degrees = {1, 1, 1, 1, 1};
  DType compute = DType::kF32;
  Sharding sharding = Sharding::kFsdp;
  Reshard reshard = Reshard::kDefault;
  bool loss_parallel = true;
  const char* schedule = "1F1B";
  int chunks = 1;
};

// NOLINTNEXTLINE(readability-identifier-naming)
void PrintTo(const HeadCase& c, std::ostream* os) {
  *os << c.name;
}

constexpr HeadCase kHeads[] = {
    {"gathered_logits", "llama3", false, {1, 1, 1, 1, 2}, {}, {}, {}, false},
    {"tied_gathered_logits", "llama3", true, {1, 1, 1, 1, 2}, {}, {}, {}, false},
    {"tied_replicas", "llama3", true, {1, 2, 1, 1, 1}, DType::kBF16},
    {"tied_shards", "llama3", true, {1, 1, 2, 1, 1}, DType::kBF16},
    {"tied_zero1", "llama3", true, {1, 1, 2, 1, 1}, DType::kBF16, Sharding::kZero1},
    {"tied_tensor", "llama3", true, {1, 1, 1, 1, 2}, DType::kBF16},
    {"tied_pipeline", "llama3", true, {2, 1, 1, 1, 1}, DType::kBF16},
    {"tied_v", "llama3", true, {2, 1, 1, 1, 1}, {}, {}, {}, true, "ZBVZeroBubble", 2},
    {"tied_of_all", "llama3", true, {2, 1, 2, 1, 2}},
    {"kept_shards", "llama3", false, {1, 1, 2, 1, 1}, DType::kBF16, {}, Reshard::kNever},
    {"dropped_shards", "llama3", false, {1, 1, 2, 1, 1}, DType::kBF16, {}, Reshard::kAlways},
    {"shards_of_tensor", "llama3", false, {1, 1, 2, 1, 2}, DType::kBF16},
    {"pipeline_of_shards", "llama3", false, {2, 1, 2, 1, 1}, DType::kBF16},
    {"gpt2_shards", "gpt2", true, {1, 1, 2, 1, 1}, DType::kBF16},
    {"gpt2_tensor", "gpt2", true, {1, 1, 1, 1, 2}},
    {"gpt2_pipeline", "gpt2", true, {2, 1, 1, 1, 1}, DType::kBF16},
    {"gpt2_untied", "gpt2", false, {1, 1, 1, 2, 2}},
};

std::string quantizes_all(const std::string& /*name*/, const Dims& /*dims*/) {
  return "";
}

MeshCase case_of(const HeadCase& of, const std::string& recipe) {
  const bool is_gpt2 = of.family == std::string("gpt2");
  MeshCase c{.model = small_llama(),
             .compute = of.compute,
             .seq_len = 40,
             .global_batch = 8,
             .num_microbatches = of.degrees[0] > 1 ? 4 : 1,
             .steps = 3};
  c.model.family = &family_of(of.family);
  c.model.tied = of.tied;
  c.model.vocab_size = 256;
  c.model.dim = 64;
  c.model.num_kv_heads = is_gpt2 ? 4 : 2;
  c.model.num_layers = 4;
  c.model.head_dim = 16;
  c.model.mlp_dim = 96;
  c.model.max_seq_len = is_gpt2 ? 40 : 0;
  c.distribute.mesh.degrees = of.degrees;
  c.distribute.sharding = of.sharding;
  c.distribute.reshard = of.reshard;
  c.distribute.loss_parallel = of.loss_parallel;
  if (of.degrees[0] > 1) set_pipeline(c, of.schedule, of.chunks);
  c.float8 = {.recipe = *find_float8_recipe(recipe), .layers = {.filter = quantizes_all}};
  c.float8->recipe.power_of_two = true;  // they absorb noise of sums in another order
  return c;
}

class Float8Head : public ::testing::TestWithParam<std::tuple<HeadCase, const char*>> {};

TEST_P(Float8Head, is_near_one_rank) {
  const auto& [of, recipe] = GetParam();
  const MeshCase c = case_of(of, recipe);
  MeshCase alone = c;
  alone.distribute = {};
  static std::map<std::string, MeshResult> known;
  const auto [at, is_new] = known.try_emplace(of.family + describe(alone) + recipe);
  if (is_new) at->second = run_mesh(alone);
  const MeshResult& one = at->second;
  const MeshResult mesh = run_mesh(c);
  EXPECT_NEAR(mesh.loss[0], one.loss[0], 1e-3 * one.loss[0]);
  EXPECT_NEAR(mesh.grad_norm[0], one.grad_norm[0], 2e-2 * one.grad_norm[0]);
  for (size_t t = 1; t < one.loss.size(); ++t)
    EXPECT_NEAR(mesh.loss[t], one.loss[t], 1e-2 * one.loss[t]) << "step " << t + 1;
}

INSTANTIATE_TEST_SUITE_P(Recipes, Float8Head,
                         ::testing::Combine(::testing::ValuesIn(kHeads),
                                            ::testing::Values("tensorwise", "delayed", "rowwise")),
                         [](const auto& of) {
                           return std::string(std::get<0>(of.param).name) + "_" +
                                  std::get<1>(of.param);
                         });

// The tasks of `T` in phase `phase` of the plan's segments with the first input of these dims.
template <class T>
std::vector<const Task*> tasks_of(const Plan& plan, Phase phase, const Dims& dims) {
  std::vector<const Task*> found;
  for (const Segment& segment : plan.segments) {
    for (const Task& task : segment.tasks) {
      if (task.rules == &kRules<T> && task.label.phase == phase && task.in[0].type.dims == dims)
        found.push_back(&task);
    }
  }
  return found;
}

// Scales of x and of the gradient of logits are of a chunk; w is quantized once for all chunks and
// microbatches, and transposed once for all chunks.
TEST(Float8HeadPlan, quantizes_the_weight_once_and_each_chunk) {
  MeshCase c = case_of({"", "llama3"}, "tensorwise");
  c.model.vocab_size = 512;
  c.num_microbatches = 2;
  c.global_batch = 32;
  const PlannedRun run(c.model, shape_of(c, 0), {});
  const Dims w{512, 64};
  EXPECT_EQ(tasks_of<Quantize>(run.plan(), Phase::kUnshard, w).size(), 1U);
  EXPECT_EQ(tasks_of<Quantize>(run.plan(), Phase::kForward, w).size(), 0U);
  EXPECT_EQ(tasks_of<TransposeQuantized>(run.plan(), Phase::kForward, w).size(), 1U);
  const int64_t rows = 384;  // 640 tokens in two chunks
  for (const int64_t chunk : {rows, 640 - rows}) {
    const auto dlogits = tasks_of<Quantize>(run.plan(), Phase::kForward, {chunk, 512});
    ASSERT_EQ(dlogits.size(), 1U) << chunk;
    EXPECT_EQ(dlogits[0]->out[0].type.dtype, DType::kE5M2);
    EXPECT_EQ(tasks_of<Amax>(run.plan(), Phase::kForward, {chunk, 512}).size(), 1U);
    EXPECT_EQ(tasks_of<Amax>(run.plan(), Phase::kForward, {chunk, 64}).size(), 1U);
    EXPECT_EQ(tasks_of<Quantize>(run.plan(), Phase::kForward, {chunk, 64}).size(), 2U);
  }
}

// Long chunks are those of a head in the compute dtype.
TEST(Float8HeadPlan, has_as_few_chunks_as_without_fp8_where_they_are_long) {
  MeshCase c = case_of({"", "llama3"}, "delayed");
  c.model.vocab_size = 512;
  c.global_batch = 32;
  const auto chunks = [&] {
    const PlannedRun run(c.model, shape_of(c, 0), {});
    std::vector<int64_t> rows;
    for (const Segment& segment : run.plan().segments) {
      for (const Task& task : segment.tasks) {
        if (task.rules == &kRules<SoftmaxStats>) rows.push_back(task.in[0].type.dims[0]);
      }
    }
    return rows;
  };
  EXPECT_EQ(chunks(), (std::vector<int64_t>{640, 640}));
  c.float8->layers.long_loss_chunks = true;
  EXPECT_EQ(chunks(), (std::vector<int64_t>{1280}));
  c.float8.reset();
  EXPECT_EQ(chunks(), (std::vector<int64_t>{1280}));
}

// The scale of a delayed row is that of all chunks, so the loss is the same; the weight's gradient
// is summed in other parts.
TEST(Float8Head, has_the_loss_of_short_chunks_where_chunks_are_long) {
  for (const MeshCoordinates& degrees :
       {MeshCoordinates{1, 1, 1, 1, 1}, MeshCoordinates{2, 1, 1, 1, 2}}) {
    MeshCase c = case_of({"", "llama3", false, degrees}, "delayed");
    c.model.vocab_size = 512;
    c.global_batch = degrees[0] > 1 ? 128 : 32;
    const MeshResult apart = run_mesh(c);
    c.float8->layers.long_loss_chunks = true;
    const MeshResult whole = run_mesh(c);
    EXPECT_NEAR(whole.loss[0], apart.loss[0], 1e-12 * apart.loss[0]);
    for (size_t t = 0; t < apart.loss.size(); ++t) {
      EXPECT_NEAR(whole.loss[t], apart.loss[t], 1e-4 * apart.loss[t]) << "step " << t + 1;
      EXPECT_NEAR(whole.grad_norm[t], apart.grad_norm[t], 1e-3 * apart.grad_norm[t]);
    }
  }
}

TEST(Float8HeadPlan, quantizes_validation_without_gradients) {
  const MeshCase c = case_of({"", "llama3"}, "rowwise");
  RunShape shape = shape_of(c, 0);
  shape.validation = shape.training;
  const PlannedRun run(c.model, shape, {});
  const Plan& plan = *run.validation_plan();
  EXPECT_EQ(tasks_of<ScaledMatmul>(plan, Phase::kForward, {320, 64}).size(), 1U);
  EXPECT_EQ(tasks_of<Quantize>(plan, Phase::kUnshard, {256, 64}).size(), 1U);
}

// A tied table keeps a copy for the look-up; quantized values are still of the master where the run
// wants it.
TEST(Float8HeadPlan, quantizes_a_tied_master) {
  for (const bool from_master : {false, true}) {
    MeshCase c = case_of({"", "llama3", true, {1, 1, 1, 1, 2}, DType::kBF16}, "tensorwise");
    c.float8->recipe.from_master = from_master;
    const PlannedRun run(c.model, shape_of(c, 0), {});
    EXPECT_TRUE(run.states().find("copy.s0.m0").valid());
    const auto made = tasks_of<Quantize>(run.plan(), Phase::kUnshard, {128, 64});
    const auto of_master = std::count_if(made.begin(), made.end(), [&](const Task* task) {
      const auto* op = static_cast<const Quantize*>(task->op.get());
      return task->in[0].type.dtype == DType::kF32 &&
             op->rounds_to == (from_master ? DType::kF32 : DType::kBF16);
    });
    EXPECT_EQ(of_master, std::ssize(made));
    EXPECT_GT(of_master, 0);
  }
}

TEST(Float8HeadPlan, keeps_no_quantized_values_of_a_tied_head) {
  for (const char* recipe : {"tensorwise", "rowwise"}) {
    for (const bool keeps : {false, true}) {
      MeshCase c = case_of({"", "llama3", true}, recipe);
      c.float8->recipe.keeps_transposed = keeps;
      const PlannedRun run(c.model, shape_of(c, 0), {});
      const Dims w{256, 64};
      EXPECT_EQ(tasks_of<Quantize>(run.plan(), Phase::kUnshard, w).size(), 0U) << recipe;
      EXPECT_EQ(tasks_of<TransposeQuantized>(run.plan(), Phase::kUnshard, w).size(), 0U) << recipe;
      EXPECT_GE(tasks_of<Quantize>(run.plan(), Phase::kForward, w).size(), 1U) << recipe;
    }
  }
}

}  // namespace
}  // namespace tokamak
