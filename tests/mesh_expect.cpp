#include "mesh_expect.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tokamak/graph/streams.h"
#include "tokamak/parallel/schedules.h"
#include "tokamak/parallel/stage_split.h"

namespace tokamak {
namespace {

MeshCase on_one_rank(MeshCase c, DType compute) {
  c.distribute = {};
  c.compute = compute;
  c.logits_multiple = 1;
  return c;
}

// A key bias has no gradient: what it holds is rounding.
bool is_attention_bias(const std::string& name) {
  return name.find("_proj.bias") != std::string::npos;
}

void expect_parameters(const MeshResult& got, const MeshResult& want, const MeshCase& c) {
  double all_difference = 0.0;
  double all_norm = 0.0;
  for (const auto& [name, values] : want.parameters) {
    const auto it = got.parameters.find(name);
    ASSERT_NE(it, got.parameters.end()) << name;
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{it->second[i]} - double{values[i]}, 2);
      norm += std::pow(double{values[i]}, 2);
    }
    const double bound = 1e-5 * std::sqrt(norm) + 1e-3 * c.lr * static_cast<double>(c.steps) *
                                                      std::sqrt(static_cast<double>(values.size()));
    if (!is_attention_bias(name)) {
      EXPECT_LE(std::sqrt(difference), bound) << name;
    }
    all_difference += difference;
    all_norm += norm;
  }
  EXPECT_LE(std::sqrt(all_difference), 1e-5 * std::sqrt(all_norm));
}

// One training in fp32 on one rank, in bf16 on one rank, in bf16 on the mesh.
struct Bf16Runs {
  MeshResult exact;
  MeshResult one;
  MeshResult mesh;

  explicit Bf16Runs(MeshCase c)
      : exact(run_mesh(on_one_rank(c, DType::kF32))), one(run_mesh(on_one_rank(c, DType::kBF16))) {
    c.compute = DType::kBF16;
    mesh = run_mesh(c);
  }

  static double relative(const MeshResult& run, const MeshResult& to, size_t step) {
    return (run.loss[step] - to.loss[step]) / to.loss[step];
  }

  size_t steps() const { return exact.loss.size(); }

  double of_one(size_t step) const { return relative(one, exact, step); }

  double of_mesh(size_t step) const { return relative(mesh, exact, step); }
};

void expect_bf16_as_one_rank(const MeshCase& c) {
  const Bf16Runs runs(c);
  ASSERT_EQ(runs.mesh.loss.size(), runs.steps());
  EXPECT_EQ(runs.mesh.initial, runs.exact.initial);
  for (size_t t = 0; t < runs.steps(); ++t) {
    EXPECT_LE(std::abs(runs.of_mesh(t)), 1.5 * std::abs(runs.of_one(t)) + 1e-4) << "step " << t + 1;
  }
}

}  // namespace

ModelSpec small_llama() {
  return {.family = Family::kLlama,
          .name = "test",
          .flavor = "small",
          .vocab_size = 61,
          .dim = 32,
          .num_layers = 3,
          .num_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 8,
          .mlp_dim = 48};
}

void set_pipeline(MeshCase& c, const std::string& schedule, int chunks) {
  const int pp = c.distribute.mesh.degree(MeshAxis::kPp);
  c.distribute.pipeline = make_schedule(schedule, pp, chunks, static_cast<int>(c.num_microbatches));
  c.distribute.stage_of_module =
      stage_of_module(split_stages({.num_layers = static_cast<int>(c.model.num_layers),
                                    .num_ranks = pp,
                                    .schedule = schedule,
                                    .num_stages = c.distribute.pipeline.num_stages()}));
}

std::vector<int> first_known(const Segment& segment) {
  std::vector<StreamTask> tasks;
  std::vector<std::vector<int>> waits;
  for (const Task& task : segment.tasks) {
    tasks.push_back({.stream = task.stream, .when = task.when});
    waits.push_back(task.waits);
  }
  return first_known(tasks, waits);
}

std::string describe(const MeshCase& c) {
  std::string text = c.model.name;
  for (size_t a = 0; a < kNumMeshAxes; ++a) {
    const auto axis = static_cast<MeshAxis>(a);
    if (c.distribute.mesh.degree(axis) > 1)
      text += fmt::format(" {}{}", name_of(axis), c.distribute.mesh.degree(axis));
  }
  if (!c.distribute.pipeline.name.empty()) {
    text += fmt::format(" {} stages {}", c.distribute.pipeline.name,
                        fmt::join(c.distribute.stage_of_module, ""));
  }
  return fmt::format(
      "{} heads {}/{} vocab {} mlp {} {} seq {} batch {} in {} recompute {} sharding {} reshard {} "
      "grad_store {} loss_parallel {} async_tp {} gather_again {} context {} tied {} dropout {} "
      "logits {}",
      text, c.model.num_heads, c.model.num_kv_heads, c.model.vocab_size, c.model.mlp_dim,
      name_of(c.compute), c.seq_len, c.global_batch, c.num_microbatches,
      static_cast<int>(c.recompute.mode), static_cast<int>(c.distribute.sharding),
      static_cast<int>(c.distribute.reshard), static_cast<int>(c.distribute.grad_store),
      c.distribute.loss_parallel, c.distribute.async_tp, c.distribute.gather_again,
      static_cast<int>(c.distribute.context), c.model.tied, c.model.residual_dropout,
      c.logits_multiple);
}

void expect_as_one_rank(const MeshCase& c) {
  if (c.compute == DType::kBF16) return expect_bf16_as_one_rank(c);
  const MeshResult got = run_mesh(c);
  const MeshResult want = run_mesh(on_one_rank(c, DType::kF32));
  ASSERT_EQ(got.loss.size(), want.loss.size());
  EXPECT_EQ(got.initial, want.initial);
  for (size_t t = 0; t < want.loss.size(); ++t) {
    EXPECT_NEAR(got.loss[t], want.loss[t], 1e-5 * std::abs(want.loss[t])) << "step " << t + 1;
    EXPECT_NEAR(got.grad_norm[t], want.grad_norm[t], 1e-5 * want.grad_norm[t]) << "step " << t + 1;
  }
  expect_parameters(got, want, c);
}

void expect_gradients_as_one_rank(const MeshCase& with_steps) {
  MeshCase c = with_steps;
  c.steps = 1;
  const MeshResult got = run_mesh(c);
  const MeshResult want = run_mesh(on_one_rank(c, DType::kF32));
  double bias_difference = 0.0;
  double bias_norm = 0.0;
  ASSERT_EQ(got.first_moments.size(), want.first_moments.size());
  for (const auto& [name, values] : want.first_moments) {
    double difference = 0.0;
    double norm = 0.0;
    const std::vector<float>& ours = got.first_moments.at(name);
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{ours[i]} - double{values[i]}, 2);
      norm += std::pow(double{values[i]}, 2);
    }
    if (is_attention_bias(name)) {
      bias_difference += difference;
      bias_norm += norm;
    } else {
      EXPECT_GT(norm, 0.0) << name;
      EXPECT_LE(std::sqrt(difference), 1e-5 * std::sqrt(norm)) << name;
    }
  }
  EXPECT_LE(std::sqrt(bias_difference), 1e-5 * std::sqrt(bias_norm));
}

double bf16_signed_difference(const MeshCase& c) {
  const Bf16Runs runs(c);
  double sum = 0.0;
  for (size_t t = 0; t < runs.steps(); ++t)
    sum += (runs.mesh.loss[t] - runs.one.loss[t]) / runs.exact.loss[t];
  return sum / static_cast<double>(runs.steps());
}

}  // namespace tokamak
