#include "tokamak/train/bench/op_scenes.h"

#include <map>
#include <set>

#include <fmt/format.h>

#include "tokamak/ops/attention/attention.h"
#include "tokamak/ops/attention/rope.h"
#include "tokamak/ops/elementwise/add.h"
#include "tokamak/ops/elementwise/cast.h"
#include "tokamak/ops/elementwise/gelu.h"
#include "tokamak/ops/elementwise/swiglu.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/norm/norm.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/ops/optimizer/adamw.h"
#include "tokamak/ops/optimizer/grad_norm.h"
#include "tokamak/ops/vocab/cross_entropy.h"
#include "tokamak/ops/vocab/embedding.h"
#include "tokamak/train/bench/op_benchmark.h"

namespace tokamak {
namespace {

using Kind = OperandFill::Kind;

// dims: tokens, out, in
void build_linear(SceneBuilder& b, const Dims& d) {
  const Value x = b.normal({d[0], d[2]});
  const Value w = b.normal({d[1], d[2]});
  const Value dy = b.normal({d[0], d[1]});
  b.run(Linear{}, {x, w});
  b.run(LinearGradInput{}, {dy, w});
  b.accumulate(b.run(LinearGradWeight{}, {x, dy})[0]);
}

// dims: tokens, dim
void build_linear_grad_bias(SceneBuilder& b, const Dims& d) {
  b.accumulate(b.run(LinearGradBias{}, {b.normal(d)})[0]);
}

// dims: batch, sequence, heads, key-value heads, head dim
void build_attention(SceneBuilder& b, const Dims& d) {
  const Dims of_queries{d[0], d[1], d[2], d[4]};
  const Dims of_keys{d[0], d[1], d[3], d[4]};
  const Attention attention;
  const Value q = b.normal(of_queries);
  const Value k = b.normal(of_keys);
  const Value v = b.normal(of_keys);
  const auto out = b.run(attention, {q, k, v});
  b.run(AttentionGrad{.forward = attention}, {q, k, v, out[0], out[1], b.normal(of_queries)});
}

// dims: batch, sequence, heads, head dim
void build_rope(SceneBuilder& b, const Dims& d) {
  b.run(Rope{.theta = 500000.0}, {b.normal(d), b.i32({d[0], d[1]}, Kind::kCount, d[1])});
}

// dims: batch, sequence, query heads, key-value heads, head dim
void build_rope_concat(SceneBuilder& b, const Dims& d) {
  const auto heads = [&](int64_t n) { return b.normal({d[0], d[1], n, d[4]}); };
  const Value positions = b.i32({d[0], d[1]}, Kind::kCount, d[1]);
  const Rope back{.theta = 500000.0, .inverse = true};
  b.run(RopeConcat{.rope = back, .num_turned = 2},
        {heads(d[2]), heads(d[3]), heads(d[3]), positions});
}

// dims of this and the next ones: tokens, dim
void build_rms_norm(SceneBuilder& b, const Dims& d) {
  const Value x = b.normal(d);
  const Value w = b.normal({d[1]});
  const Value dy = b.normal(d);
  b.run(RmsNorm{}, {x, w});
  b.run(AddRmsNorm{}, {x, dy, w});
  b.accumulate(b.run(RmsNormGrad{}, {x, w, dy})[1]);
}

void build_layer_norm(SceneBuilder& b, const Dims& d) {
  const Value x = b.normal(d);
  const Value w = b.normal({d[1]});
  const Value bias = b.normal({d[1]});
  const Value dy = b.normal(d);
  b.run(LayerNorm{}, {x, w, bias});
  b.run(AddLayerNorm{}, {x, dy, w, bias});
  const auto grads = b.run(LayerNormGrad{}, {x, w, dy});
  b.accumulate(grads[1]);
  b.accumulate(grads[2]);
}

void build_swiglu(SceneBuilder& b, const Dims& d) {
  const Value gate_and_up = b.normal({d[0], 2 * d[1]});
  b.run(Swiglu{.packed = true}, {gate_and_up});
  b.run(SwigluGrad{.emits_y = true, .packed = true}, {gate_and_up, b.normal(d)});
}

void build_gelu(SceneBuilder& b, const Dims& d) {
  const Value x = b.normal(d);
  b.run(Gelu{}, {x});
  b.run(GeluGrad{.emits_y = true}, {x, b.normal(d)});
}

void build_add(SceneBuilder& b, const Dims& d) {
  b.run(Add{}, {b.normal(d), b.normal(d)});
}

void build_cast(SceneBuilder& b, const Dims& d) {
  b.run(Cast{.dtype = DType::kBF16}, {b.f32(d)});
}

void build_accumulate(SceneBuilder& b, const Dims& d) {
  b.accumulate(b.run(Accumulate{}, {b.normal(d)})[0]);
}

// dims: tokens, dim, vocabulary. The gradient overwrites, since adding would touch only the tokens'
// rows.
void build_embedding(SceneBuilder& b, const Dims& d) {
  const Value tokens = b.i32({d[0]}, Kind::kBelow, d[2]);
  b.run(Embedding{}, {tokens, b.normal({d[2], d[1]})});
  b.run(EmbeddingGrad{.vocab = d[2]}, {tokens, b.normal({d[0], d[1]})});
}

// dims: tokens of a chunk, vocabulary
void build_cross_entropy(SceneBuilder& b, const Dims& d) {
  const Value logits = b.normal(d);
  const Value labels = b.i32({d[0]}, Kind::kBelow, d[1]);
  const Value scale = b.f32({1}, Kind::kOnes);
  const Value stats = b.run(SoftmaxStats{}, {logits, labels})[0];
  b.run(Nll{}, {stats, labels, scale});
  b.run(CrossEntropyGrad{}, {logits, labels, stats, scale});
}

// dims of these and the next: parameters. These update their compute copy too.
void build_adamw(SceneBuilder& b, const AdamW& op, DType moments, const Dims& d) {
  const Value scalars = b.operand({.dtype = DType::kF64, .dims = {4}}, Kind::kOnes);
  const Value copy = b.operand({.dtype = DType::kBF16, .dims = d}, Kind::kOnes);
  const TensorType of_moments{.dtype = moments, .dims = d};
  const Value m = b.operand(of_moments, Kind::kNormal);
  const Value v = b.operand(of_moments, Kind::kPositive);
  b.run(op, {b.f32(d), m, v, b.f32(d), scalars, b.f32({1}, Kind::kOnes), copy});
}

void build_adamw_f32(SceneBuilder& b, const Dims& d) {
  build_adamw(b, {.has_copy = true}, DType::kF32, d);
}

void build_adamw_bf16(SceneBuilder& b, const Dims& d) {
  build_adamw(b, {.has_copy = true, .is_stochastic = true}, DType::kBF16, d);
}

void build_sum_squares(SceneBuilder& b, const Dims& d) {
  b.run(SumSquares{}, {b.f32(d)});
}

// Names the ops that each scene builds.
std::vector<OpScene> with_ops(std::vector<OpScene> scenes) {
  for (OpScene& scene : scenes) {
    StateTable states;
    Graph graph(states);
    SceneBuilder builder(states, graph, DType::kBF16);
    scene.build(builder, scene.small[0]);
    for (int32_t i = 0; i < graph.size(); ++i) {
      if (!graph.node(i).is_leaf()) scene.ops.insert(graph.node(i).rules->name);
    }
  }
  return scenes;
}

}  // namespace

Value SceneBuilder::operand(const TensorType& type, OperandFill::Kind kind, int64_t limit) {
  const StateId state = states_.declare(
      {.name = fmt::format("operand{}", fills_.size()), .type = type, .kind = StateKind::kInput});
  fills_.push_back({.state = state, .kind = kind, .limit = limit});
  return graph_.read(state);
}

void SceneBuilder::accumulate(Value value) {
  graph_.accumulate(value, operand(graph_.type(value)), AccumulateMode::kAlways);
}

const std::vector<OpScene>& op_scenes() {
  static const std::vector<OpScene> kScenes = [] {
    std::vector<OpScene> all{
        {"linear",
         "tokens x out x in",
         {{16384, 4096, 4096},
          {16384, 1024, 4096},
          {16384, 14336, 4096},
          {16384, 4096, 14336},
          {4096, 128256, 4096}},
         {{512, 256, 512}},
         build_linear},
        {"linear_grad_bias",
         "tokens x dim",
         {{16384, 4096}, {16384, 1600}, {16384, 6400}},  // the last ones GPT-2 1.5B's
         {{512, 256}},
         build_linear_grad_bias},
        {"attention",
         "batch x sequence x heads x key-value heads x head dim",
         {{2, 8192, 32, 8, 128}},
         {{1, 256, 4, 2, 64}},
         build_attention},
        {"rope",
         "batch x sequence x heads x head dim",
         {{2, 8192, 40, 128}, {2, 8192, 32, 128}},  // 8B: queries and keys as one, queries alone
         {{1, 256, 4, 64}},
         build_rope},
        {"rope_concat",
         "batch x sequence x heads x kv heads x head dim",
         {{2, 8192, 32, 8, 128}},
         {{1, 256, 4, 2, 64}},
         build_rope_concat},
        {"rms_norm", "tokens x dim", {{16384, 4096}}, {{512, 256}}, build_rms_norm},
        {"layer_norm",
         "tokens x dim",
         {{16384, 4096}, {16384, 1600}},
         {{512, 256}},
         build_layer_norm},
        {"swiglu", "tokens x dim", {{16384, 14336}}, {{512, 768}}, build_swiglu},
        {"gelu", "tokens x dim", {{16384, 14336}}, {{512, 768}}, build_gelu},
        {"add", "tokens x dim", {{16384, 4096}}, {{512, 256}}, build_add},
        {"cast", "rows x columns", {{14336, 4096}}, {{768, 256}}, build_cast},
        {"accumulate", "rows x columns", {{14336, 4096}}, {{768, 256}}, build_accumulate},
        {"embedding",
         "tokens x dim x vocabulary",
         {{16384, 4096, 128256}},
         {{512, 256, 4096}},
         build_embedding},
        {"cross_entropy",
         "tokens x vocabulary",
         {{4096, 128256}},
         {{256, 4096}},
         build_cross_entropy},
        {"adamw", "parameters", {{58720256}}, {{196608}}, build_adamw_f32},
        {"adamw_bf16_moments", "parameters", {{58720256}}, {{196608}}, build_adamw_bf16},
        {"sum_squares", "parameters", {{58720256}}, {{196608}}, build_sum_squares},
    };
    const std::vector<OpScene> low = low_precision_scenes();
    all.insert(all.end(), low.begin(), low.end());
    return with_ops(std::move(all));
  }();
  return kScenes;
}

}  // namespace tokamak
