#include "tokamak/models/gated_decoder.h"

#include <cmath>

#include "tokamak/models/builder.h"
#include "tokamak/ops/elementwise/swiglu.h"
#include "tokamak/ops/norm/norm.h"
#include "tokamak/ops/vocab/embedding.h"

namespace tokamak {
namespace {

class GatedDecoder : public Builder {
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
    const double std = 1.0 / std::sqrt(static_cast<double>(c_.dim));
    return with_head(
        x_BSD, table,
        c_.init == InitRecipe::kTorchtitan ? normal(std, 3.0) : normal(c_.initializer_range));
  }

 private:
  Init residual_init(int64_t layer) const {
    return Builder::residual_init(layer, c_.initializer_range);
  }

  Value norm(const std::string& name, Value x) {
    const Value w = p_.weight(name + ".weight", {c_.dim}, {kEmbed}, kOnes);
    return g_.apply(RmsNorm{.eps = static_cast<float>(c_.norm_eps)}, {x, w});
  }

  // Returns x [B, S, heads, head_dim] after the norm of `name`, if the model has one, and the
  // rotation.
  Value placed(const std::string& name, Value x) {
    if (c_.qk_norm) {
      const Value w = p_.weight(name + ".weight", {c_.head_dim}, {kNone}, kOnes);
      x = g_.apply(RmsNorm{.eps = static_cast<float>(c_.norm_eps)}, {x, w});
    }
    return g_.apply(Rope{.theta = c_.rope_theta, .scaling = rope_scaling()}, {x, in_.positions});
  }

  // Some scalings depend on the length of the run's sequences, or of the text that a cache holds.
  RopeScaling rope_scaling() const {
    RopeScaling scaling = c_.rope_scaling;
    if (scaling.kind == RopeScaling::Kind::kDynamic ||
        scaling.kind == RopeScaling::Kind::kLongRope) {
      scaling.length = in_.cache == nullptr ? g_.type(in_.tokens).dims[1]
                                            : g_.states()[in_.cache->keys[0]].type.dims[1];
    }
    return scaling;
  }

  Value block(Value x_BSD, int64_t layer) {
    const std::string name = fmt::format("model.layers.{}.", layer);
    const Value h = norm(name + "input_layernorm", x_BSD);
    const std::string attn = name + "self_attn.";
    const auto [q, k, v] = projected_heads(attn, h, c_.attention_bias);
    const Value o = attend(placed(attn + "q_norm", q), placed(attn + "k_norm", k), v, layer);
    const Value attended = project(attn + "o_proj", o, c_.dim, c_.num_heads * c_.head_dim,
                                   {kEmbed, kHeads}, residual_init(layer), c_.output_bias);
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

}  // namespace

ModelOutputs build_gated_decoder(Graph& graph, Parameters& parameters, const ModelSpec& config,
                                 const ModelInputs& inputs, uint64_t seed) {
  return GatedDecoder(graph, parameters, config, inputs, seed).build();
}

}  // namespace tokamak
