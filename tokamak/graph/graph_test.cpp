#include <cmath>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/core/random.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/exec/executor.h"
#include "tokamak/graph/differentiate.h"
#include "tokamak/ops/elementwise/add.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/plan/arenas.h"
#include "tokamak/plan/compile.h"

namespace tokamak {
namespace {

TensorType f32(Dims dims) {
  return {.dtype = DType::kF32, .dims = std::move(dims)};
}

// x -> blocks of (linear, linear, residual add) -> y, with dy given and weight gradients
// accumulated in State.
struct Tower {
  static constexpr int kBlocks = 3;
  static constexpr int64_t kRows = 6;
  static constexpr int64_t kWidth = 8;

  StateTable states;
  Graph graph{states};
  std::vector<StateId> gradients;

  StateId declare(const std::string& name, Dims dims, StateKind kind) {
    return states.declare({.name = name, .type = f32(std::move(dims)), .kind = kind});
  }

  Tower() {
    Value x = graph.read(declare("x", {kRows, kWidth}, StateKind::kInput));
    const Value dy = graph.read(declare("dy", {kRows, kWidth}, StateKind::kInput));
    std::vector<Value> weights;
    for (int b = 0; b < kBlocks; ++b) {
      const LabelScope scope(graph, {.block = b});
      Value h = x;
      for (const char* name : {"up", "down"}) {
        const Value w = graph.read(
            declare(fmt::format("{}{}", name, b), {kWidth, kWidth}, StateKind::kParameter));
        weights.push_back(w);
        h = graph.apply(Linear{}, {h, w});
      }
      x = graph.apply(Add{}, {x, h});
    }
    const Value after = graph.apply(Add{}, {x, x});
    const std::vector<Seed> seeds{{.of = after, .cotangent = dy}};
    const auto sum = [](Graph& g, Value a, Value b) { return g.apply(Add{}, {a, b}); };
    const auto parts = differentiate(graph, seeds, weights, sum);
    for (size_t i = 0; i < weights.size(); ++i) {
      gradients.push_back(
          declare(fmt::format("grad{}", i), {kWidth, kWidth}, StateKind::kGradient));
      const LabelScope scope(graph, {.phase = Phase::kBackward});
      accumulate_into(graph, parts[i][0], graph.read(gradients.back()),
                      AccumulateMode::kFirstMicrobatch);
    }
  }

  std::vector<std::vector<float>> run(const CompileOptions& given, int microbatches,
                                      int64_t* peak = nullptr) {
    CompileOptions options = given;
    const auto backend = cpu::make_backend();
    options.target = backend->target();
    const StateLayout layout = lay_out(states);
    const Plan plan = compile(graph, layout, options);
    check_plan(plan);
    const Plan* plans[] = {&plan};
    const Memory memory(*backend, plans);
    EXPECT_EQ(memory.bytes(), plan.peak_bytes());
    EXPECT_EQ(backend->allocated_bytes(), plan.peak_bytes());
    int64_t rows = 0;
    for (const MemoryRow& row : plan.memory) rows += row.bytes;
    EXPECT_EQ(rows, plan.peak_bytes());
    const StateAccess access(memory, states, layout);
    for (int32_t i = 0; i < states.size(); ++i) {
      std::vector<float> values(states[{i}].type.numel());
      for (size_t k = 0; k < values.size(); ++k) {
        values[k] = static_cast<float>(
            normal_quantile(to_uniform(random_u32(3, static_cast<uint64_t>(i), k))));
      }
      access.write(StateId{i}, std::span<const float>(values));
    }
    Executor executor(plan, memory);
    for (const ScheduleItem& item : plan.schedule(microbatches)) executor.run(item);
    std::vector<std::vector<float>> out;
    for (const StateId id : gradients) out.push_back(access.read<float>(id));
    if (peak != nullptr) *peak = plan.peak_bytes();
    return out;
  }
};

TEST(Recompute, every_mode_gives_the_same_bits_and_less_memory) {
  using enum RecomputePolicy::Mode;
  int64_t kept = 0;
  const auto want = Tower().run({}, 2, &kept);
  const std::vector<RecomputePolicy> policies{
      {.mode = kFull},
      {.mode = kSelectiveLayers, .every_nth_block = 2},
      {.mode = kSelectiveOps, .saved_ops = {"add"}, .halved_ops = {"linear"}},
      {.mode = kMemoryBudget}};
  for (const RecomputePolicy& policy : policies) {
    int64_t peak = 0;
    EXPECT_EQ(Tower().run({.recompute = policy}, 2, &peak), want);
    EXPECT_LE(peak, kept);
  }
}

TEST(Recompute, budgets_free_memory_step_by_step) {
  using enum RecomputePolicy::Mode;
  int64_t most = 0;
  int64_t least = 0;
  const auto want = Tower().run({}, 2, &most);
  Tower().run({.recompute = {.mode = kFull}}, 2, &least);
  ASSERT_LT(least, most);
  std::vector<int64_t> peaks;
  for (const double budget : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    int64_t& peak = peaks.emplace_back();
    const RecomputePolicy policy{.mode = kMemoryBudget, .memory_budget = budget};
    EXPECT_EQ(Tower().run({.recompute = policy}, 2, &peak), want) << budget;
  }
  EXPECT_LE(peaks.front(), least);
  EXPECT_EQ(peaks.back(), most);
  EXPECT_TRUE(std::is_sorted(peaks.begin(), peaks.end()));
}

TEST(Compile, forward_and_backward_apart_give_the_same_bits) {
  EXPECT_EQ(Tower().run({.split_backward = true}, 3), Tower().run({}, 3));
}

TEST(Compile, microbatches_accumulate) {
  const auto one = Tower().run({}, 1);
  const auto two = Tower().run({}, 2);
  for (size_t i = 0; i < one.size(); ++i) {
    // A product that begins at the sum so far rounds otherwise than the sum of two products.
    double difference = 0.0;
    double norm = 0.0;
    for (size_t k = 0; k < one[i].size(); ++k) {
      difference += std::pow(double{two[i][k]} - 2.0 * double{one[i][k]}, 2);
      norm += std::pow(double{two[i][k]}, 2);
    }
    EXPECT_GT(norm, 0.0);
    EXPECT_LE(std::sqrt(difference), 1e-6 * std::sqrt(norm));
  }
}

TEST(Compile, reading_a_donated_value_is_a_bug) {
  StateTable states;
  Graph graph(states);
  const auto state = [&](const char* name) {
    return graph.read(
        states.declare({.name = name, .type = f32({4, 4}), .kind = StateKind::kInput}));
  };
  const Value x = state("x");
  const Value acc = state("acc");
  const Value product = graph.apply(LinearGradWeight{}, {x, x});
  graph.accumulate(product, acc, AccumulateMode::kAlways);
  graph.roots.push_back(graph.apply(Add{}, {acc, x}));
  EXPECT_THROW(compile(graph, lay_out(states), {}), Bug);
}

TEST(Buffers, packing_never_overlaps_in_time_and_bytes) {
  std::vector<Lifetime> lives;
  int64_t most_alive = 0;
  for (int32_t i = 0; i < 300; ++i) {
    const auto first = static_cast<int32_t>(random_u32(5, 0, static_cast<uint64_t>(i)) % 200);
    const auto length = static_cast<int32_t>(random_u32(5, 1, static_cast<uint64_t>(i)) % 30);
    const int64_t bytes = 512 * (1 + random_u32(5, 2, static_cast<uint64_t>(i)) % 64);
    lives.push_back({.first = first, .last = first + length, .bytes = bytes});
  }
  const int64_t total = pack(lives);
  for (size_t i = 0; i < lives.size(); ++i) {
    EXPECT_LE(lives[i].offset + lives[i].bytes, total);
    for (size_t j = i + 1; j < lives.size(); ++j) {
      const bool in_time = lives[i].first <= lives[j].last && lives[j].first <= lives[i].last;
      const bool in_bytes = lives[i].offset < lives[j].offset + lives[j].bytes &&
                            lives[j].offset < lives[i].offset + lives[i].bytes;
      EXPECT_FALSE(in_time && in_bytes) << i << " " << j;
    }
  }
  for (int32_t t = 0; t < 230; ++t) {
    int64_t alive = 0;
    for (const Lifetime& l : lives) alive += l.first <= t && t <= l.last ? l.bytes : 0;
    most_alive = std::max(most_alive, alive);
  }
  EXPECT_LE(static_cast<double>(total), 1.25 * static_cast<double>(most_alive));
}

TEST(CheckPlan, finds_a_race_between_streams) {
  Tower tower;
  Plan plan = compile(tower.graph, lay_out(tower.states), {});
  check_plan(plan);
  auto& tasks = plan.segments[0].tasks;
  tasks[1].stream = 1;
  EXPECT_THROW(check_plan(plan), Bug);
  tasks[1].waits = {0};
  for (size_t t = 2; t < tasks.size(); ++t) tasks[t].waits = {1};
  check_plan(plan);
}

TEST(Plan, text_names_ops_blocks_and_arenas) {
  Tower tower;
  const std::string text = to_text(compile(tower.graph, lay_out(tower.states), {}));
  EXPECT_NE(text.find("segment microbatch each microbatch"), std::string::npos) << text;
  EXPECT_NE(text.find("backward b2 linear_grad_weight/"), std::string::npos) << text;
}

}  // namespace
}  // namespace tokamak
