#include "tokamak/graph/fuse.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tokamak/core/random.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/exec/executor.h"
#include "tokamak/graph/differentiate.h"
#include "tokamak/ops/elementwise/add.h"
#include "tokamak/ops/elementwise/swiglu.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/norm/norm.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/plan/compile.h"

namespace tokamak {
namespace {

using Mode = RecomputePolicy::Mode;

constexpr int64_t kRows = 24;
constexpr int64_t kWidth = 64;
constexpr int64_t kHidden = 160;
constexpr int kBlocks = 3;

// x -> blocks of x + down(swiglu(gate(norm(x)), up(norm(x)))) -> y, dy given, gradients of weights
// accumulated in State.
struct FeedForward {
  StateTable states;
  Graph graph{states};
  DType dtype;
  std::vector<StateId> gradients;

  StateId declare(const std::string& name, DType type, Dims dims, StateKind kind) {
    return states.declare(
        {.name = name, .type = {.dtype = type, .dims = std::move(dims)}, .kind = kind});
  }

  explicit FeedForward(DType type) : dtype(type) {
    Value x = graph.read(declare("x", dtype, {kRows, kWidth}, StateKind::kInput));
    graph.label = {.phase = Phase::kBackward, .module = kBlocks};
    const Value dy = graph.read(declare("dy", dtype, {kRows, kWidth}, StateKind::kInput));
    graph.label = {};
    std::vector<Value> weights;
    const auto weight = [&](const std::string& name, Dims dims) {
      weights.push_back(graph.read(declare(name, dtype, std::move(dims), StateKind::kParameter)));
      return weights.back();
    };
    for (int b = 0; b < kBlocks; ++b) {
      const LabelScope scope(graph, {.block = b, .module = b});
      const Value h = graph.apply(RmsNorm{}, {x, weight(fmt::format("norm{}", b), {kWidth})});
      const Value gate =
          graph.apply(Linear{}, {h, weight(fmt::format("gate{}", b), {kHidden, kWidth})});
      const Value up =
          graph.apply(Linear{}, {h, weight(fmt::format("up{}", b), {kHidden, kWidth})});
      const Value product = graph.apply(Swiglu{}, {gate, up});
      x = graph.apply(Add{}, {x, graph.apply(Linear{}, {product, weight(fmt::format("down{}", b),
                                                                        {kWidth, kHidden})})});
    }
    const std::vector<Seed> seeds{{.of = x, .cotangent = dy}};
    const auto sum = [](Graph& g, Value a, Value b) { return g.apply(Add{}, {a, b}); };
    const auto parts = differentiate(graph, seeds, weights, sum);
    for (size_t i = 0; i < weights.size(); ++i) {
      gradients.push_back(declare(fmt::format("grad{}", i), DType::kF32,
                                  graph.type(weights[i]).dims, StateKind::kGradient));
      accumulate_into(graph, parts[i][0], graph.read(gradients.back()),
                      AccumulateMode::kFirstMicrobatch);
    }
  }

  Plan plan(CompileOptions options) const {
    options.target = cpu::make_backend()->target();
    Plan made = compile(graph, lay_out(states), options);
    check_plan(made);
    return made;
  }

  std::vector<float> run(const CompileOptions& options) {
    const auto backend = cpu::make_backend();
    const StateLayout layout = lay_out(states);
    const Plan made = plan(options);
    const Plan* plans[] = {&made};
    const Memory memory(*backend, plans);
    const StateAccess access(memory, states, layout);
    for (int32_t i = 0; i < states.size(); ++i) {
      const TensorType& type = states[{i}].type;
      std::vector<float> values(type.numel());
      for (size_t k = 0; k < values.size(); ++k) {
        values[k] = 0.3F * static_cast<float>(normal_quantile(
                               to_uniform(random_u32(3, static_cast<uint64_t>(i), k))));
      }
      if (type.dtype == DType::kBF16) {
        const std::vector<BF16> narrow(values.begin(), values.end());
        access.write(StateId{i}, std::span<const BF16>(narrow));
      } else {
        access.write(StateId{i}, std::span<const float>(values));
      }
    }
    Executor executor(made, memory);
    for (const ScheduleItem& item : made.schedule(2)) executor.run(item);
    std::vector<float> all;
    for (const StateId id : gradients) {
      const std::vector<float> one = access.read<float>(id);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
};

int count(const Plan& plan, std::string_view op, std::optional<Phase> phase = {}) {
  int found = 0;
  for (const Segment& segment : plan.segments) {
    for (const Task& task : segment.tasks)
      found += task.rules->name == op && (!phase || task.label.phase == *phase) ? 1 : 0;
  }
  return found;
}

double relative_difference(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(double{got[i]} - double{want[i]}, 2);
    norm += std::pow(double{want[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

TEST(EmitOnBackward, LeavesEveryBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto want = FeedForward(dtype).run({.recompute = {.emit_on_backward = false}});
    EXPECT_EQ(FeedForward(dtype).run({}), want) << name_of(dtype);
    for (const Mode mode : {Mode::kNone, Mode::kFull, Mode::kSelectiveOps}) {
      for (const bool split : {false, true}) {
        const RecomputePolicy policy{.mode = mode, .halved_ops = {"linear"}};
        EXPECT_EQ(FeedForward(dtype).run({.recompute = policy, .split_backward = split}), want)
            << name_of(dtype) << " mode " << static_cast<int>(mode) << " split " << split;
      }
    }
  }
}

TEST(EmitOnBackward, SavesNeitherProductsNorNormsOutputs) {
  const FeedForward model(DType::kF32);
  const auto saved = [&](bool emits) {
    const Plan plan =
        model.plan({.recompute = {.emit_on_backward = emits}, .split_backward = true});
    return plan.arena_bytes[ArenaKind::kSlot];
  };
  constexpr int64_t kOutputs = kRows * (kWidth + kHidden) * int64_t{sizeof(float)};
  EXPECT_EQ(saved(false) - saved(true), kBlocks * kOutputs);
}

TEST(EmitOnBackward, TakesThePlaceOfAClone) {
  const FeedForward model(DType::kF32);
  const Plan plain = model.plan({.recompute = {.mode = Mode::kFull, .emit_on_backward = false}});
  const Plan emits = model.plan({.recompute = {.mode = Mode::kFull}});
  EXPECT_EQ(count(plain, "swiglu", Phase::kBackward), kBlocks);
  EXPECT_EQ(count(emits, "swiglu", Phase::kBackward), 0);
}

// A node that reads gradient storage (a reduction) holds the products before it in their place.
TEST(EmitOnBackward, KeepsWhatIsReducedBeforeTheReduction) {
  for (const bool reduces_before : {false, true}) {
    StateTable states;
    Graph g(states);
    const auto state = [&](const char* name, Dims dims, StateKind kind, StateId window_of = {}) {
      return g.read(states.declare({.name = name,
                                    .type = {.dtype = DType::kF32, .dims = std::move(dims)},
                                    .kind = kind,
                                    .window_of = window_of}));
    };
    const Value gate = state("gate", {4, 8}, StateKind::kInput);
    const Value up = state("up", {4, 8}, StateKind::kInput);
    const Value dy = state("dy", {4, 8}, StateKind::kInput);
    const Value dw = state("dw", {8, 8}, StateKind::kGradient);
    const Value row = state("row", {8}, StateKind::kGradient, g.producer(dw).state);
    const Value reduced = state("reduced", {8}, StateKind::kResult);
    const Value product = g.apply(Swiglu{}, {gate, up});
    const LabelScope scope(g, {.phase = Phase::kBackward});
    g.accumulate(g.apply(LinearGradWeight{}, {product, dy}), dw, AccumulateMode::kFirstMicrobatch);
    const auto reduce = [&] {
      g.accumulate(g.apply(Accumulate{}, {row}), reduced, AccumulateMode::kNever);
    };
    if (reduces_before) reduce();
    g.roots = g.add(SwigluGrad{}, {gate, up, dy});
    if (!reduces_before) reduce();
    const Graph made = emit_on_backward(g, lay_out(states));
    EXPECT_EQ(made.producer(made.roots[0]).as<SwigluGrad>()->emits_y, !reduces_before);
  }
}

TEST(Fuse, LeavesNoSumInTheBackward) {
  const FeedForward model(DType::kF32);
  const Plan plain = model.plan({.fuse = false});
  const Plan fused = model.plan({});
  EXPECT_EQ(count(plain, "add", Phase::kBackward), 2 * kBlocks - 1);
  // dy, which the host has written, is not written over.
  EXPECT_EQ(count(fused, "add", Phase::kBackward), 1);
  EXPECT_EQ(count(plain, "add", Phase::kForward), kBlocks - 1);
  EXPECT_EQ(count(fused, "add", Phase::kForward), 0);
  EXPECT_EQ(count(fused, "add_rms_norm"), kBlocks - 1);
  EXPECT_LE(fused.peak_bytes(), plain.peak_bytes());
}

TEST(Fuse, AgreesWithTheSumsApart) {
  for (const auto& [dtype, bound] : {std::pair{DType::kF32, 1e-6}, std::pair{DType::kBF16, 6e-3}}) {
    const auto want = FeedForward(dtype).run({.fuse = false});
    const auto got = FeedForward(dtype).run({});
    EXPECT_LT(relative_difference(got, want), bound) << name_of(dtype);
  }
}

TEST(Fuse, ANormAfterASumLeavesEveryBit) {
  StateTable states;
  Graph g(states);
  const auto state = [&](const char* name, Dims dims, StateKind kind) {
    return g.read(states.declare(
        {.name = name, .type = {.dtype = DType::kF32, .dims = std::move(dims)}, .kind = kind}));
  };
  const Value x = state("x", {6, 33}, StateKind::kInput);
  const Value w = state("w", {33}, StateKind::kInput);
  const Value sum = g.apply(Add{}, {x, x});
  g.roots = {g.apply(RmsNorm{.eps = 0.5F}, {sum, w}), sum};
  const Graph fused = fuse_producers(g, lay_out(states));
  const Node& node = fused.producer(fused.roots[0]);
  ASSERT_NE(node.as<AddRmsNorm>(), nullptr);
  EXPECT_EQ(node.as<AddRmsNorm>()->eps, 0.5F);
  EXPECT_EQ(fused.roots[0].out, 1);
  EXPECT_EQ(fused.roots[1], (Value{fused.roots[0].node, 0}));
}

TEST(Fuse, ALayerNormTakesTheSumBeforeIt) {
  StateTable states;
  Graph g(states);
  const auto state = [&](const char* name, Dims dims) {
    return g.read(states.declare({.name = name,
                                  .type = {.dtype = DType::kF32, .dims = std::move(dims)},
                                  .kind = StateKind::kInput}));
  };
  const Value sum = g.apply(Add{}, {state("x", {6, 33}), state("branch", {6, 33})});
  const Value w = state("w", {33});
  const Value b = state("b", {33});
  g.roots = {g.apply(LayerNorm{.eps = 0.5F}, {sum, w, b}), sum};
  const Graph fused = fuse_producers(g, lay_out(states));
  const Node& node = fused.producer(fused.roots[0]);
  ASSERT_NE(node.as<AddLayerNorm>(), nullptr);
  EXPECT_EQ(node.as<AddLayerNorm>()->eps, 0.5F);
  EXPECT_EQ(node.in.size(), 4U);
  EXPECT_EQ(fused.roots[0].out, 1);
  EXPECT_EQ(fused.roots[1], (Value{fused.roots[0].node, 0}));
}

TEST(Fuse, ASumWhosePartIsReadLaterStays) {
  for (const bool read_later : {false, true}) {
    StateTable states;
    Graph g(states);
    const auto state = [&](const char* name) {
      return g.read(states.declare({.name = name,
                                    .type = {.dtype = DType::kF32, .dims = {4, 4}},
                                    .kind = StateKind::kInput}));
    };
    const Value dy = state("dy");
    const Value a = g.apply(LinearGradInput{}, {dy, state("v")});
    const Value b = g.apply(LinearGradInput{}, {dy, state("w")});
    g.roots = {g.apply(Add{}, {a, b})};
    if (read_later) g.roots.push_back(g.apply(LinearGradInput{}, {a, state("u")}));
    const Graph sums = accumulate_sums(g);
    EXPECT_EQ(sums.producer(sums.roots[0]).as<Add>() != nullptr, read_later);
  }
}

}  // namespace
}  // namespace tokamak
