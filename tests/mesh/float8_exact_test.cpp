// Drawn graphs of linear layers whose values are exact in every format: with quantized values in
// place of values they have the same bits.
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/comm/world.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/exec/executor.h"
#include "tokamak/ops/float8/scaled_matmul.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/parallel/float8/quantize_matmuls.h"
#include "tokamak/plan/compile.h"

#include "tests/fixtures/draw.h"

namespace tokamak {
namespace {

// Layers of up to three inputs, each read by up to three weights, and all their gradients; all
// values are -2, -1, 0, 1 or 2. Some gradients of inputs and of weights are sums.
class DrawnLayers {
 public:
  DrawnLayers(uint64_t seed, uint64_t index, int64_t multiple)
      : draw_(seed, index), multiple_(multiple), graph_(states_) {
    for (int j = draw_.below(3); j >= 0; --j) add_layer(j);
  }

  const Graph& graph() const { return graph_; }

  // Returns what the graph, or quantized values in its place, returns by the names of its results.
  std::map<std::string, std::vector<float>> run(const Graph& graph) {
    const StateLayout layout = lay_out(states_);
    const auto backend = cpu::make_backend({.threads = 1});
    const Plan plan = compile(graph, layout, {.target = backend->target()});
    const Plan* plans[] = {&plan};
    const Memory memory(*backend, plans);
    const StateAccess access(memory, states_, layout);
    for (int32_t i = 0; i < states_.size(); ++i) {
      if (states_[{i}].kind == StateKind::kInput) write(access, {i});
    }
    Executor executor(plan, memory, {});
    for (const ScheduleItem& item : plan.schedule(1)) executor.run(item);
    std::map<std::string, std::vector<float>> results;
    for (int32_t i = 0; i < states_.size(); ++i) {
      if (states_[{i}].kind == StateKind::kResult)
        results[states_[{i}].name] = access.read<float>({i});
    }
    return results;
  }

 private:
  int64_t dim() { return multiple_ * (1 + draw_.below(3)); }

  Value leaf(const std::string& name, Dims dims, StateKind kind = StateKind::kInput) {
    return graph_.read(states_.declare(
        {.name = name, .type = {.dtype = DType::kF32, .dims = std::move(dims)}, .kind = kind}));
  }

  void write(const StateAccess& access, StateId id) const {
    std::vector<float> values(states_[id].type.numel());
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(random_u32(9, stream_of(states_[id].name), i) % 5) - 2.0F;
    access.write(id, std::span<const float>(values));
  }

  void keep(const std::string& name, Value v) {
    accumulate_into(graph_, v, leaf(name, graph_.type(v).dims, StateKind::kResult),
                    AccumulateMode::kFirstMicrobatch);
  }

  void add_layer(int j) {
    const int64_t tokens = 1 + draw_.below(70);
    const int64_t in = dim();
    const Dims leading = draw_.flip() ? Dims{tokens} : Dims{2, tokens};
    const auto values = [&](const std::string& name, int64_t last) {
      Dims dims = leading;
      dims.push_back(last);
      return leaf(name, dims);
    };
    const Value x = values(fmt::format("x{}", j), in);
    Value sum;  // of gradients of x
    for (int k = draw_.below(3); k >= 0; --k) {
      const std::string name = fmt::format("{}.{}", j, k);
      const int64_t out = dim();
      const Value w = leaf("w" + name, {out, in});
      std::vector<Value> read{x, w};
      if (draw_.flip()) read.push_back(leaf("b" + name, {out}));
      const std::string module = fmt::format("module{}", k);
      {
        const LabelScope scope(graph_, {.block = j});
        keep("y" + name, graph_.apply(Linear{.low_precision = true, .module = module}, read));
      }
      const LabelScope scope(graph_, {.phase = Phase::kBackward, .block = j});
      const Value g = values("g" + name, out);
      const Value dx =
          graph_.apply(LinearGradInput{.low_precision = true, .module = module}, {g, w});
      if (sum.valid() && draw_.flip()) graph_.accumulate(dx, sum, AccumulateMode::kAlways);
      if (!graph_.producer(dx).accumulations.empty() || !sum.valid()) {
        sum = dx;
      } else {
        keep("dx" + name, dx);
      }
      const Value dw =
          graph_.apply(LinearGradWeight{.low_precision = true, .module = module}, {x, g});
      keep("dw" + name, dw);
    }
    const LabelScope scope(graph_, {.phase = Phase::kBackward, .block = j});
    keep(fmt::format("dx{}", j), sum);
  }

  Draw draw_;
  int64_t multiple_;
  StateTable states_;
  Graph graph_;
};

class Float8Exact : public ::testing::TestWithParam<const char*> {};

TEST_P(Float8Exact, drawn_graphs_have_the_same_bits) {
  Float8Recipe recipe = *find_float8_recipe(GetParam());
  recipe.power_of_two = true;  // so that quantized values of small integers are exact
  const uint64_t seed = number_from("TOK_FLOAT8_SEED", 1);
  int64_t products = 0;
  for (uint64_t i = 0; i < 12; ++i) {
    recipe.shares_scales = i % 2 == 0;
    DrawnLayers layers(seed, i, recipe.multiple());
    const Graph quantized = quantize_matmuls(layers.graph(), recipe, {});
    for (int32_t n = 0; n < quantized.size(); ++n) {
      if (quantized.node(n).as<ScaledMatmul>() != nullptr) ++products;
    }
    const auto want = layers.run(layers.graph());
    const auto got = layers.run(quantized);
    EXPECT_EQ(got, want) << "graph " << i << " of TOK_FLOAT8_SEED=" << seed;
  }
  EXPECT_GT(products, 60);
}

INSTANTIATE_TEST_SUITE_P(Recipes, Float8Exact,
                         ::testing::Values("tensorwise", "rowwise", "rowwise_with_gw_hp",
                                           "blockwise", "mxfp8_rceil"),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace
}  // namespace tokamak
