// Products of one input as one product: where that happens, where not, and what it leaves alone.
#include <algorithm>
#include <cmath>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tokamak/models/model_spec.h"
#include "tokamak/ops/linear.h"
#include "tokamak/ops/rope.h"
#include "tokamak/ops/swiglu.h"

#include "mesh_expect.h"

namespace tokamak {
namespace {

constexpr int64_t kLayers = 3;

ModelSpec small_llama() {
  return {.family = Family::kLlama,
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

MeshCase on(const ModelSpec& model, std::array<int, kNumMeshAxes> degrees) {
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
TEST(MergedProducts, are_one_for_qkv_and_one_for_gate_and_up) {
  const auto run = plan_of(on(small_llama(), {1, 1, 2, 1, 1}));
  EXPECT_EQ(tasks_of<LinearGradInput>(*run).size(), 4 * kLayers) << notes_of(*run);
  EXPECT_EQ(tasks_of<LinearGradWeight>(*run).size(), 4 * kLayers);
  EXPECT_EQ(tasks_of<Linear>(*run).size(), 6 * kLayers);
  EXPECT_EQ(tasks_of<RopeConcat>(*run).size(), kLayers);
  for (const Task* task : tasks_of<SwigluGrad>(*run))
    EXPECT_TRUE(static_cast<const SwigluGrad*>(task->op.get())->packed);
  EXPECT_TRUE(says(*run, "[32, 32] + [16, 32] + [16, 32]: gradients as one product"))
      << notes_of(*run);
  EXPECT_TRUE(says(*run, "[48, 32] + [48, 32]: gradients as one product, forward too"));
}

TEST(MergedProducts, stay_apart_where_they_are_not_wanted) {
  MeshCase c = on(small_llama(), {1, 1, 2, 1, 1});
  c.distribute.merge_products = false;
  const auto run = plan_of(c);
  EXPECT_EQ(tasks_of<LinearGradInput>(*run).size(), 7 * kLayers);
  EXPECT_EQ(tasks_of<LinearGradWeight>(*run).size(), 7 * kLayers);
  EXPECT_EQ(tasks_of<Linear>(*run).size(), 7 * kLayers);
  EXPECT_TRUE(run->notes().empty());
}

// Where ranks share key-value heads, whose gradients are then sums over those ranks, only key and
// value weights are neighbours.
TEST(MergedProducts, leave_queries_alone_where_ranks_share_keys) {
  const auto run = plan_of(on(small_llama(), {1, 1, 1, 1, 4}));
  EXPECT_EQ(tasks_of<LinearGradInput>(*run).size(), 5 * kLayers);
  EXPECT_TRUE(says(*run, "[8, 32] + [8, 32]: gradients as one product")) << notes_of(*run);
  EXPECT_TRUE(says(*run, "none of the others lies beside it"));
}

// 36 x 36 elements are no multiple of 128, where tensors of a bucket begin.
TEST(MergedProducts, need_weights_without_a_gap) {
  ModelSpec model = small_llama();
  model.dim = 36;
  model.num_heads = 6;
  model.head_dim = 6;
  model.mlp_dim = 49;
  const auto run = plan_of(on(model, {1, 1, 2, 1, 1}));
  EXPECT_EQ(tasks_of<LinearGradInput>(*run).size(), 7 * kLayers) << notes_of(*run);
  EXPECT_TRUE(says(*run, "[36, 36]: none of the others lies beside it")) << notes_of(*run);
}

TEST(MergedProducts, stay_apart_with_biases_and_in_chunks) {
  ModelSpec model = small_llama();
  model.attention_bias = true;
  const auto run = plan_of(on(model, {1, 1, 2, 1, 1}));
  EXPECT_EQ(tasks_of<LinearGradInput>(*run).size(), 6 * kLayers);
  EXPECT_TRUE(says(*run, "its output gradient is not read by products alone")) << notes_of(*run);

  MeshCase chunked = on(small_llama(), {1, 1, 1, 1, 2});
  chunked.distribute.async_tp = true;
  const auto ring = plan_of(chunked);
  EXPECT_TRUE(tasks_of<RopeConcat>(*ring).empty());
}

// The same sums, rounded at other places.
TEST(MergedProducts, change_gradients_by_rounding_alone) {
  for (const auto& degrees : {std::array{1, 1, 2, 1, 1}, std::array{1, 1, 1, 1, 2},
                              std::array{1, 1, 1, 2, 1}, std::array{2, 1, 1, 1, 1}}) {
    MeshCase c = on(small_llama(), degrees);
    c.steps = 1;
    c.num_microbatches = 2;
    if (degrees[0] > 1) set_pipeline(c, "InterleavedZeroBubble", 1);
    const MeshResult merged = run_mesh(c);
    c.distribute.merge_products = false;
    const MeshResult apart = run_mesh(c);
    EXPECT_EQ(merged.initial, apart.initial);
    EXPECT_EQ(merged.first_moments.size(), apart.first_moments.size());
    for (const auto& [name, want] : apart.first_moments) {
      const std::vector<float>& got = merged.first_moments.at(name);
      double apart_by = 0.0;
      double all = 0.0;
      for (size_t i = 0; i < want.size(); ++i) {
        apart_by += std::pow(double{got[i]} - double{want[i]}, 2.0);
        all += std::pow(double{want[i]}, 2.0);
      }
      EXPECT_LE(std::sqrt(apart_by), 3e-6 * std::sqrt(all)) << name;
    }
  }
}

// What a merged product reads is not kept for longer, nor are gathered weights.
TEST(MergedProducts, take_hardly_more_memory) {
  for (const auto mode : {RecomputePolicy::Mode::kNone, RecomputePolicy::Mode::kFull}) {
    MeshCase c = on(flavor_spec("llama3", "8B"), {1, 1, 4, 1, 1});
    c.compute = DType::kBF16;
    c.seq_len = 2048;
    c.recompute.mode = mode;
    const int64_t merged = plan_of(c)->peak_bytes();
    c.distribute.merge_products = false;
    const int64_t apart = plan_of(c)->peak_bytes();
    EXPECT_LE(static_cast<double>(merged), 1.005 * static_cast<double>(apart));
  }
}

}  // namespace
}  // namespace tokamak
