#include "tokamak/models/model.h"

#include <cmath>

#include <fmt/format.h>

#include "tokamak/core/random.h"
#include "tokamak/ops/attention/attention.h"
#include "tokamak/ops/attention/cache_append.h"
#include "tokamak/ops/elementwise/add.h"
#include "tokamak/ops/elementwise/dropout.h"
#include "tokamak/ops/elementwise/swiglu.h"
#include "tokamak/ops/layout/reshape.h"
#include "tokamak/ops/matmul/linear.h"
#include "tokamak/ops/norm/layer_norm.h"
#include "tokamak/ops/norm/rms_norm.h"
#include "tokamak/ops/vocab/embedding.h"

namespace tokamak {
namespace {

// B batch, S sequence, D embed, H heads, K kv heads, F mlp, V vocabulary
using enum LogicalAxis;

Init normal(double std, double cut = 0.0) {
  return {.kind = Init::Kind::kNormal, .std = std, .cut = cut};
}

constexpr Init kZeros{.kind = Init::Kind::kZeros};
constexpr Init kOnes{.kind = Init::Kind::kOnes};

// What both families share: the scope of names, dropout, and attention over heads.
class Builder {
 public:
  Builder(Graph& graph, Parameters& parameters, const ModelSpec& config, const ModelInputs& inputs,
          uint64_t seed)
      : g_(graph), p_(parameters), c_(config), in_(inputs), seed_(seed) {}

 protected:
  // Residual projections of block `layer` are scaled down with depth.
  Init residual_init(int64_t layer) const {
    if (c_.init == InitRecipe::kTorchtitan)
      return truncated(0.02 / std::sqrt(2.0 * static_cast<double>(layer + 1)));
    const bool is_scaled = c_.family == Family::kGpt2;
    return normal(c_.initializer_range /
                  (is_scaled ? std::sqrt(2.0 * static_cast<double>(c_.num_layers)) : 1.0));
  }

  Init weight_init() const {
    return c_.init == InitRecipe::kTorchtitan ? truncated(0.02) : normal(c_.initializer_range);
  }

  // torch.nn.init.trunc_normal_ cuts at +-2 absolute.
  static Init truncated(double std) { return normal(std, 2.0 / std); }

  Value project(const std::string& name, Value x, int64_t out, int64_t in, Axes axes, Init init,
                bool bias) {
    const LogicalAxis out_axis = axes[0];
    const Value w = p_.weight(name + ".weight", {out, in}, std::move(axes), init);
    const Value b = bias ? p_.weight(name + ".bias", {out}, {out_axis}, kZeros) : Value{};
    return g_.apply(Linear{}, {x, w, b});
  }

  Value heads(Value x) { return g_.apply(Reshape{.dims = {0, 0, -1, c_.head_dim}}, {x}); }

  Value attend(Value q_BSHd, Value k_BSKd, Value v_BSKd, int64_t layer) {
    Attention op{.causal = true};
    std::vector<Value> in{q_BSHd, k_BSKd, v_BSKd};
    if (in_.cache != nullptr) {
      const auto i = static_cast<size_t>(layer);
      in[1] = g_.apply(CacheAppend{}, {g_.read(in_.cache->keys[i]), k_BSKd, in_.cache->position});
      in[2] = g_.apply(CacheAppend{}, {g_.read(in_.cache->values[i]), v_BSKd, in_.cache->position});
      op.has_length = true;
      in.push_back(in_.cache->length);
    } else if (c_.attention_dropout > 0.0 && in_.rows.valid()) {
      op.dropout_p = c_.attention_dropout;
      op.seed = seed_;
      op.stream = stream_of(fmt::format("attention.{}", layer));
      in.push_back(in_.rows);
    }
    const Value o_BSHd = g_.add(op, in)[0];
    return g_.apply(Reshape{.dims = {0, 0, -1}}, {o_BSHd});
  }

  Value dropout(Value x, double p, const std::string& where) {
    if (p == 0.0 || !in_.rows.valid()) return x;
    return g_.apply(Dropout{.p = p, .seed = seed_, .stream = stream_of(where)},
                    {x, in_.rows, in_.positions});
  }

  Value residual(Value x, Value branch, const std::string& where) {
    return g_.apply(Add{}, {x, dropout(branch, c_.residual_dropout, where)});
  }

  Label block_label(int64_t layer) const {
    Label label = g_.label;
    label.block = static_cast<int32_t>(layer);
    label.module = static_cast<int32_t>(layer) + 1;
    return label;
  }

  // Of what follows the blocks.
  Label norm_label() const { return module_label(c_.num_layers + 1); }

  Label head_label() const { return module_label(head_module(c_)); }

  Label module_label(int64_t module) const {
    Label label = g_.label;
    label.module = static_cast<int32_t>(module);
    return label;
  }

  Graph& g_;
  Parameters& p_;
  const ModelSpec& c_;
  const ModelInputs& in_;
  uint64_t seed_;
};

// Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU. Names as transformers'
// LlamaForCausalLM.
class Llama : public Builder {
 public:
  using Builder::Builder;

  ModelOutputs build() {
    const Init embedding =
        c_.init == InitRecipe::kTorchtitan ? normal(1.0) : normal(c_.initializer_range);
    const Value table = p_.weight("model.embed_tokens.weight", {c_.vocab_size, c_.dim},
                                  {kVocab, kEmbed}, embedding);
    Value x_BSD = g_.apply(Embedding{}, {in_.tokens, table});
    for (int64_t layer = 0; layer < c_.num_layers; ++layer) {
      const LabelScope scope(g_, block_label(layer));
      x_BSD = block(x_BSD, layer);
    }
    {
      const LabelScope scope(g_, norm_label());
      x_BSD = norm("model.norm", x_BSD);
    }
    if (c_.tied) return {.hidden = x_BSD, .head = table};
    const LabelScope scope(g_, head_label());
    const double std = 1.0 / std::sqrt(static_cast<double>(c_.dim));
    const Init head =
        c_.init == InitRecipe::kTorchtitan ? normal(std, 3.0) : normal(c_.initializer_range);
    return {.hidden = x_BSD,
            .head = p_.weight("lm_head.weight", {c_.vocab_size, c_.dim}, {kVocab, kEmbed}, head)};
  }

 private:
  Value norm(const std::string& name, Value x) {
    const Value w = p_.weight(name + ".weight", {c_.dim}, {kEmbed}, kOnes);
    return g_.apply(RmsNorm{.eps = static_cast<float>(c_.norm_eps)}, {x, w});
  }

  Value rope(Value x) {
    return g_.apply(Rope{.theta = c_.rope_theta, .scaling = c_.rope_scaling}, {x, in_.positions});
  }

  Value block(Value x_BSD, int64_t layer) {
    const std::string name = fmt::format("model.layers.{}.", layer);
    const int64_t q_dim = c_.num_heads * c_.head_dim;
    const int64_t kv_dim = c_.num_kv_heads * c_.head_dim;
    const Value h = norm(name + "input_layernorm", x_BSD);
    const std::string attn = name + "self_attn.";
    const bool bias = c_.attention_bias;
    const Value q =
        heads(project(attn + "q_proj", h, q_dim, c_.dim, {kHeads, kEmbed}, weight_init(), bias));
    const Value k =
        heads(project(attn + "k_proj", h, kv_dim, c_.dim, {kKvHeads, kEmbed}, weight_init(), bias));
    const Value v =
        heads(project(attn + "v_proj", h, kv_dim, c_.dim, {kKvHeads, kEmbed}, weight_init(), bias));
    const Value o = attend(rope(q), rope(k), v, layer);
    const Value attended =
        project(attn + "o_proj", o, c_.dim, q_dim, {kEmbed, kHeads}, residual_init(layer), bias);
    x_BSD = residual(x_BSD, attended, name + "attention");
    return residual(x_BSD,
                    mlp(name + "mlp.", norm(name + "post_attention_layernorm", x_BSD), layer),
                    name + "mlp");
  }

  Value mlp(const std::string& name, Value h, int64_t layer) {
    const Init up_init = c_.init == InitRecipe::kTorchtitan ? residual_init(layer) : weight_init();
    const Value gate = project(name + "gate_proj", h, c_.mlp_dim, c_.dim, {kMlp, kEmbed},
                               weight_init(), c_.mlp_bias);
    const Value up =
        project(name + "up_proj", h, c_.mlp_dim, c_.dim, {kMlp, kEmbed}, up_init, c_.mlp_bias);
    const Value a_BSF = g_.apply(Swiglu{}, {gate, up});
    return project(name + "down_proj", a_BSF, c_.dim, c_.mlp_dim, {kEmbed, kMlp},
                   residual_init(layer), c_.mlp_bias);
  }
};

// GPT-2: LayerNorm, learned positions, biases, GELU. Names as transformers' GPT2LMHeadModel, with
// c_attn in its three parts (q_proj, k_proj, v_proj) and weights stored [out, in].
class Gpt2 : public Builder {
 public:
  using Builder::Builder;

  ModelOutputs build() {
    const Value wte = p_.weight("transformer.wte.weight", {c_.vocab_size, c_.dim}, {kVocab, kEmbed},
                                weight_init());
    const Value wpe = p_.weight("transformer.wpe.weight", {c_.max_seq_len, c_.dim}, {kNone, kEmbed},
                                weight_init());
    const Value tokens_BSD = g_.apply(Embedding{}, {in_.tokens, wte});
    const Value positions_BSD = g_.apply(Embedding{}, {in_.positions, wpe});
    Value x_BSD = dropout(g_.apply(Add{}, {tokens_BSD, positions_BSD}), c_.embedding_dropout,
                          "transformer.drop");
    for (int64_t layer = 0; layer < c_.num_layers; ++layer) {
      const LabelScope scope(g_, block_label(layer));
      x_BSD = block(x_BSD, layer);
    }
    {
      const LabelScope scope(g_, norm_label());
      x_BSD = norm("transformer.ln_f", x_BSD);
    }
    if (c_.tied) return {.hidden = x_BSD, .head = wte};
    const LabelScope scope(g_, head_label());
    return {.hidden = x_BSD,
            .head = p_.weight("lm_head.weight", {c_.vocab_size, c_.dim}, {kVocab, kEmbed},
                              weight_init())};
  }

 private:
  Value norm(const std::string& name, Value x) {
    const Value w = p_.weight(name + ".weight", {c_.dim}, {kEmbed}, kOnes);
    const Value b = p_.weight(name + ".bias", {c_.dim}, {kEmbed}, kZeros);
    return g_.apply(LayerNorm{.eps = static_cast<float>(c_.norm_eps)}, {x, w, b});
  }

  Value block(Value x_BSD, int64_t layer) {
    const std::string name = fmt::format("transformer.h.{}.", layer);
    const int64_t D = c_.dim;
    const int64_t kv_dim = c_.num_kv_heads * c_.head_dim;
    const Value h = norm(name + "ln_1", x_BSD);
    const Value q =
        heads(project(name + "attn.q_proj", h, D, D, {kHeads, kEmbed}, weight_init(), true));
    const Value k =
        heads(project(name + "attn.k_proj", h, kv_dim, D, {kKvHeads, kEmbed}, weight_init(), true));
    const Value v =
        heads(project(name + "attn.v_proj", h, kv_dim, D, {kKvHeads, kEmbed}, weight_init(), true));
    const Value o = attend(q, k, v, layer);
    const Value attended =
        project(name + "attn.c_proj", o, D, D, {kEmbed, kHeads}, residual_init(layer), true);
    x_BSD = residual(x_BSD, attended, name + "attn.resid_dropout");
    const Value h2 = norm(name + "ln_2", x_BSD);
    const Value up =
        project(name + "mlp.c_fc", h2, c_.mlp_dim, D, {kMlp, kEmbed}, weight_init(), true);
    const Value a_BSF = g_.apply(Gelu{.kind = c_.gelu}, {up});
    const Value down = project(name + "mlp.c_proj", a_BSF, D, c_.mlp_dim, {kEmbed, kMlp},
                               residual_init(layer), true);
    return residual(x_BSD, down, name + "mlp.dropout");
  }
};

}  // namespace

ModelOutputs build_model(Graph& graph, Parameters& parameters, const ModelSpec& config,
                         const ModelInputs& inputs, uint64_t seed) {
  if (config.family == Family::kGpt2) return Gpt2(graph, parameters, config, inputs, seed).build();
  return Llama(graph, parameters, config, inputs, seed).build();
}

}  // namespace tokamak
