// Products of one input as one product: where that happens, where not, and what it leaves alone.
#include <algorithm>
#include <cmath>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tokamak/models/model_spec.h"
#include "tokamak/ops/attention/attention.h"
#include "tokamak/ops/attention/rope.h"
#include "tokamak/ops/elementwise/swiglu.h"
#include "tokamak/ops/matmul/linear.h"

#include "tests/fixtures/mesh_expect.h"

namespace tokamak {
namespace {

constexpr int64_t kLayers = 3;

ModelSpec even_llama() {
  return {.family = &family_of("llama3"),
          .name = "test",
          .flavor = "small",
          .vocab_size = 64,
          .dim = 32,
          .num_layers = kLayers,
          .num_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 8,
          .mlp_dim = 48};
}

// Its biases of 64 elements are no multiples of 128, where matrices begin.
ModelSpec even_gpt2() {
  return {.family = &family_of("gpt2"),
          .name = "test",
          .flavor = "small",
          .vocab_size = 64,
          .dim = 64,
          .num_layers = kLayers,
          .num_heads = 8,
          .num_kv_heads = 8,
          .head_dim = 8,
          .mlp_dim = 96,
          .max_seq_len = 16};
}

MeshCase on(const ModelSpec& model, MeshCoordinates degrees) {
  MeshCase c{.model = model, .seq_len = 16, .global_batch = 4};
  c.distribute.mesh.degrees = degrees;
  return c;
}

std::unique_ptr<PlannedRun> plan_of(const MeshCase& c) {
  return std::make_unique<PlannedRun>(c.model, shape_of(c, 0), Target{});
}

bool says(const PlannedRun& run, const std::string& text) {
  return std::any_of(run.notes().begin(), run.notes().end(),
                     [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

std::string notes_of(const PlannedRun& run) {
  return fmt::format("{}", fmt::join(run.notes(), "\n"));
}

template <class T>
std::vector<const Task*> tasks_of(const PlannedRun& run) {
  std::vector<const Task*> found;
  for (const Segment& segment : run.plan().segments) {
    for (const Task& task : segment.tasks) {
      if (task.rules == &kRules<T> && task.label.block >= 0) found.push_back(&task);
    }
  }
  return found;
}

// Products of one block: qkv, o, gate and up, down.
TEST(MergedMatmuls, are_one_for_qkv_and_one_for_gate_and_up) {
  const auto run = plan_of(on(even_llama(), {1, 1, 2, 1, 1}));
  EXPECT_EQ(tasks_of<LinearGradInput>(*run).size(), 4 * kLayers) << notes_of(*run);
  EXPECT_EQ(tasks_of<LinearGradWeight>(*run).size(), 4 * kLayers);
  EXPECT_EQ(tasks_of<Linear>(*run).size(), 4 * kLayers);
  EXPECT_TRUE(tasks_of<RopeConcat>(*run).empty());
  for (const Task* task : tasks_of<Attention>(*run))
    EXPECT_EQ(static_cast<const Attention*>(task->op.get())->packed_kv_heads, 2);
  const auto ropes = tasks_of<Rope>(*run);
  EXPECT_EQ(ropes.size(), 2 * kLayers);
  for (const Task* task : ropes) {
    EXPECT_EQ(static_cast<const Rope*>(task->op.get())->num_turned, 6);
    EXPECT_EQ(task->in[0].offset, task->out[0].offset);
  }
  for (const Task* task : tasks_of<SwigluGrad>(*run))
    EXPECT_TRUE(static_cast<const SwigluGrad*>(task->op.get())->packed);
  EXPECT_TRUE(says(*run, "[32, 32] + [16, 32] + [16, 32]: gradients as one product, forward too"))
      << notes_of(*run);
  EXPECT_TRUE(says(*run, "[48, 32] + [48, 32]: gradients as one product, forward too"));
}

// Where attention communicates, it has its three operands; their gradients are put side by side.
TEST(MergedMatmuls, leave_the_forward_alone_where_the_sequence_is_cut) {
  const auto run = plan_of(on(even_llama(), {1, 1, 1, 2, 1}));
  EXPECT_EQ(tasks_of<LinearGradInput>(*run).size(), 4 * kLayers) << notes_of(*run);
  EXPECT_EQ(tasks_of<Linear>(*run).size(), 6 * kLayers);
  EXPECT_EQ(tasks_of<RopeConcat>(*run).size(), kLayers);
  EXPECT_TRUE(says(*run, "forward apart: no attention of this rank alone reads all three"));
}

// Products of one block: qkv, c_proj, c_fc, c_proj.
TEST(MergedMatmuls, are_one_with_their_biases) {
  for (const auto& degrees : {MeshCoordinates{1, 1, 2, 1, 1}, MeshCoordinates{1, 1, 1, 1, 2}}) {
    const auto run = plan_of(on(even_gpt2(), degrees));
    EXPECT_EQ(tasks_of<Linear>(*run).size(), 4 * kLayers) << notes_of(*run);
    EXPECT_EQ(tasks_of<LinearGradInput>(*run).size(), 4 * kLayers);
    EXPECT_EQ(tasks_of<LinearGradWeight>(*run).size(), 4 * kLayers);
    EXPECT_EQ(tasks_of<LinearGradBias>(*run).size(), 4 * kLayers);
  }
}

TEST(MergedMatmuls, stay_apart_where_they_are_not_wanted) {
  MeshCase c = on(even_llama(), {1, 1, 2, 1, 1});
  c.distribute.merge_matmuls = false;
  const auto run = plan_of(c);
  EXPECT_EQ(tasks_of<LinearGradInput>(*run).size(), 7 * kLayers);
  EXPECT_EQ(tasks_of<LinearGradWeight>(*run).size(), 7 * kLayers);
  EXPECT_EQ(tasks_of<Linear>(*run).size(), 7 * kLayers);
  EXPECT_TRUE(run->notes().empty());
}

// Where ranks share key-value heads, whose gradients are then sums over those ranks, only key and
// value weights are neighbours.
TEST(MergedMatmuls, leave_queries_alone_where_ranks_share_keys) {
  const auto run = plan_of(on(even_llama(), {1, 1, 1, 1, 4}));
  EXPECT_EQ(tasks_of<LinearGradInput>(*run).size(), 5 * kLayers);
  EXPECT_TRUE(says(*run, "[8, 32] + [8, 32]: gradients as one product")) << notes_of(*run);
  EXPECT_TRUE(says(*run, "none of the others is adjacent to it"));
}

// 36 x 36 elements are no multiple of 128, where tensors of a bucket begin.
TEST(MergedMatmuls, need_weights_without_a_gap) {
  ModelSpec model = even_llama();
  model.dim = 36;
  model.num_heads = 6;
  model.head_dim = 6;
  model.mlp_dim = 49;
  const auto run = plan_of(on(model, {1, 1, 2, 1, 1}));
  EXPECT_EQ(tasks_of<LinearGradInput>(*run).size(), 7 * kLayers) << notes_of(*run);
  EXPECT_TRUE(says(*run, "[36, 36]: none of the others is adjacent to it")) << notes_of(*run);
}

// Biases of 36 elements have gaps between them, their weights of 36 x 32 none.
TEST(MergedMatmuls, need_biases_without_a_gap) {
  ModelSpec model = even_gpt2();
  model.num_heads = 9;
  model.num_kv_heads = 9;
  model.head_dim = 4;
  model.dim = 36;
  const auto run = plan_of(on(model, {1, 1, 2, 1, 1}));
  EXPECT_EQ(tasks_of<LinearGradInput>(*run).size(), 6 * kLayers) << notes_of(*run);
  EXPECT_TRUE(says(*run, "[36, 36]: none of the others is adjacent to it")) << notes_of(*run);
}

// The same sums, rounded at other places.
void expect_rounding_alone(MeshCase c, double bound) {
  const MeshResult merged = run_mesh(c);
  c.distribute.merge_matmuls = false;
  const MeshResult apart = run_mesh(c);
  EXPECT_EQ(merged.initial, apart.initial);
  EXPECT_EQ(merged.first_moments.size(), apart.first_moments.size());
  for (const auto& [name, want] : apart.first_moments) {
    const std::vector<float>& got = merged.first_moments.at(name);
    double apart_by = 0.0;
    for (size_t i = 0; i < want.size(); ++i)
      apart_by += std::pow(double{got[i]} - double{want[i]}, 2.0);
    // That of keys' biases is rounding alone.
    std::string scale = name;
    if (const size_t at = name.find("k_proj.bias"); at != std::string::npos) scale[at] = 'v';
    double all = 0.0;
    for (const float x : apart.first_moments.at(scale)) all += std::pow(double{x}, 2.0);
    EXPECT_LE(std::sqrt(apart_by), bound * std::sqrt(all)) << name;
  }
}

TEST(MergedMatmuls, change_gradients_by_rounding_alone) {
  for (const auto& degrees : {MeshCoordinates{1, 1, 2, 1, 1}, MeshCoordinates{1, 1, 1, 1, 2},
                              MeshCoordinates{1, 1, 1, 2, 1}, MeshCoordinates{2, 1, 1, 1, 1}}) {
    for (const ModelSpec& model : {even_llama(), even_gpt2()}) {
      MeshCase c = on(model, degrees);
      c.steps = 1;
      c.num_microbatches = 2;
      if (degrees[0] > 1) set_pipeline(c, "InterleavedZeroBubble", 1);
      expect_rounding_alone(c, 3e-6);
    }
  }
}

TEST(MergedMatmuls, are_right_with_biases_and_dropout_and_recompute) {
  for (ModelSpec model : {even_llama(), even_gpt2()}) {
    model.attention.bias = true;
    model.mlp_bias = true;
    model.dropout.attention = 0.1;
    for (const auto mode : {RecomputePolicy::Mode::kFull, RecomputePolicy::Mode::kSelectiveOps}) {
      MeshCase c = on(model, {1, 1, 2, 1, 1});
      c.steps = 1;
      c.num_microbatches = 2;
      c.recompute.mode = mode;
      if (mode == RecomputePolicy::Mode::kSelectiveOps) c.recompute.saved_ops = {"linear"};
      expect_rounding_alone(c, 3e-6);
    }
  }
}

// What a merged product reads is not kept for longer, nor are gathered weights.
TEST(MergedMatmuls, take_hardly_more_memory) {
  for (const auto mode : {RecomputePolicy::Mode::kNone, RecomputePolicy::Mode::kFull}) {
    MeshCase c = on(flavor_spec("llama3", "8B"), {1, 1, 4, 1, 1});
    c.compute = DType::kBF16;
    c.seq_len = 2048;
    c.recompute.mode = mode;
    const int64_t merged = plan_of(c)->peak_bytes();
    c.distribute.merge_matmuls = false;
    const int64_t apart = plan_of(c)->peak_bytes();
    EXPECT_LE(static_cast<double>(merged), 1.005 * static_cast<double>(apart));
  }
}

}  // namespace
}  // namespace tokamak
