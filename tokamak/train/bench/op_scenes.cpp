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
#include "tokamak/ops/float8/quantize.h"
#include "tokamak/ops/float8/scaled_matmul.h"
#include "tokamak/ops/float8/transpose_codes.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/norm/norm.h"
#include "tokamak/ops/optimizer/accumulate.h"
#include "tokamak/ops/optimizer/adamw.h"
#include "tokamak/ops/optimizer/grad_norm.h"
#include "tokamak/ops/vocab/cross_entropy.h"
#include "tokamak/ops/vocab/embedding.h"
#include "tokamak/parallel/matmuls/float8_recipe.h"
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

// A linear layer and its gradients in 8-bit floats.
class Float8Scene {
 public:
  // dims: tokens, out, in
  Float8Scene(SceneBuilder& b, const Dims& d) : b_(b), d_(d) {}

  void build(const Float8Recipe& recipe) {
    const Value x = b_.normal({d_[0], d_[2]});
    const Value w = b_.normal({d_[1], d_[2]});
    const Value g = b_.normal({d_[0], d_[1]});
    keeps_columns_ = recipe.of_dw == ScaleGrid::kRows ? std::set<Value>{x, g} : std::set<Value>{};
    const Codes codes_of_x = codes(x, recipe.x_of_y, DType::kE4M3, Layout::kRows);
    const Codes codes_of_w = codes(w, recipe.w_of_y, DType::kE4M3, Layout::kRows);
    multiply({.out = b_.dtype(), .fast_accumulation = recipe.fast_y}, recipe.x_of_y, codes_of_x,
             recipe.w_of_y, codes_of_w);
    const bool both =  // in one pass
        recipe.of_dw == ScaleGrid::kTensor || recipe.of_dw == ScaleGrid::kSegments;
    const std::vector<Value> g_both =
        quantize(g, recipe.g_of_dx, recipe.gradient, both ? Layout::kBoth : Layout::kRows);
    const size_t inverse = both ? 2 : 1;
    multiply({.out = b_.dtype(), .product = Cost::Product::kInputGradient}, recipe.g_of_dx,
             {g_both[0], g_both[inverse]}, recipe.w_of_dx,
             transpose(w, codes_of_w, recipe.w_of_dx));
    const Codes g_transposed = both ? Codes{g_both[1], g_both.back()}
                                    : codes(g, recipe.of_dw, recipe.gradient, Layout::kTransposed);
    b_.accumulate(multiply({.product = Cost::Product::kWeightGradient}, recipe.of_dw, g_transposed,
                           recipe.of_dw,
                           codes(x, recipe.of_dw, DType::kE4M3, Layout::kTransposed)));
  }

 private:
  using Layout = Quantize::Layout;

  struct Codes {
    Value codes, inverse;
  };

  std::vector<Value> quantize(Value v, ScaleGrid grid, DType format, Layout layout) {
    Quantize op{.format = format, .grid = grid, .layout = layout};
    op.has_amax = layout == Layout::kRows && keeps_columns_.contains(v);
    std::vector<Value> in{v};
    if (!op.takes_maxima()) {
      const bool of_columns = layout == Layout::kTransposed && grid != ScaleGrid::kTensor;
      const auto known = columns_.find(v);
      in.push_back(known != columns_.end()
                       ? known->second
                       : b_.run(Amax{.grid = grid, .transposed = of_columns}, {v})[0]);
    }
    std::vector<Value> out = b_.run(op, in);
    if (op.has_amax) columns_[v] = out.back();
    return out;
  }

  Codes codes(Value v, ScaleGrid grid, DType format, Layout layout) {
    const std::vector<Value> out = quantize(v, grid, format, layout);
    return {out[0], out[1]};
  }

  Codes transpose(Value w, const Codes& rows, ScaleGrid grid) {
    if (grid == ScaleGrid::kRows) return codes(w, grid, DType::kE4M3, Layout::kTransposed);
    std::vector<Value> in{rows.codes};
    if (grid == ScaleGrid::kBlocks) in.push_back(rows.inverse);
    const std::vector<Value> out = b_.run(TransposeCodes{.grid = grid}, in);
    return {out[0], out.size() > 1 ? out[1] : rows.inverse};
  }

  Value multiply(ScaledMatmul op, ScaleGrid a_grid, const Codes& a, ScaleGrid b_grid,
                 const Codes& b) {
    op.a_grid = a_grid;
    op.b_grid = b_grid;
    return b_.run(op, {a.codes, a.inverse, b.codes, b.inverse})[0];
  }

  std::set<Value> keeps_columns_;  // taken where quantized values of rows are made
  std::map<Value, Value> columns_;
  SceneBuilder& b_;
  const Dims& d_;
};

void build_tensorwise(SceneBuilder& b, const Dims& d) {
  Float8Scene(b, d).build(*find_float8_recipe("tensorwise"));
}

void build_rowwise(SceneBuilder& b, const Dims& d) {
  Float8Scene(b, d).build(*find_float8_recipe("rowwise"));
}

void build_blockwise(SceneBuilder& b, const Dims& d) {
  Float8Scene(b, d).build(*find_float8_recipe("blockwise"));
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
  static const std::vector<Dims> kFloat8Dims{
      {16384, 4096, 4096}, {16384, 14336, 4096}, {32768, 8192, 2048}};  // the last one 1B's
  static const std::vector<Dims> kFewCodes{{256, 128, 256}};
  static const std::vector<OpScene> kScenes = with_ops({
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
      {"float8_tensorwise", "tokens x out x in", kFloat8Dims, kFewCodes, build_tensorwise, true},
      {"float8_rowwise", "tokens x out x in", kFloat8Dims, kFewCodes, build_rowwise, true},
      {"float8_blockwise", "tokens x out x in", kFloat8Dims, kFewCodes, build_blockwise, true},
  });
  return kScenes;
}

}  // namespace tokamak
