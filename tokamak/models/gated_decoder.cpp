#include "tokamak/models/gated_decoder.h"

#include <cmath>

#include "tokamak/models/builder.h"
#include "tokamak/ops/elementwise/scale.h"
#include "tokamak/ops/elementwise/swiglu.h"
#include "tokamak/ops/norm/norm.h"
#include "tokamak/ops/vocab/embedding.h"

namespace tokamak {
namespace {

class GatedDecoder : public Builder {
 public:
  using Builder::Builder;

  ModelOutputs build() {
    const double root = std::sqrt(static_cast<double>(c_.dim));
    const bool is_torchtitan = c_.init == InitRecipe::kTorchtitan;
    const Init head = is_torchtitan ? normal(1.0 / root, 3.0) : normal(c_.initializer_range);
    // A head with deviations of 1 would give logits of sqrt(dim), so a tied table begins as a head.
    const Init embedding = !is_torchtitan || c_.tied ? head
                           : c_.scale_embedding      ? normal(1.0 / root)
                                                     : normal(1.0);
    const Value table = p_.weight("model.embed_tokens.weight", {c_.vocab_size, c_.dim},
                                  {kVocab, kEmbed}, embedding);
    Value x_BSD = g_.apply(Embedding{}, {in_.tokens, table});
    if (c_.scale_embedding) x_BSD = g_.apply(Scale{.a = root}, {x_BSD});
    for (int64_t layer = 0; layer < c_.num_layers; ++layer) {
      const LabelScope scope(g_, block_label(layer));
      x_BSD = block(x_BSD, layer);
    }
    {
      const LabelScope scope(g_, norm_label());
      x_BSD = norm("model.norm", x_BSD);
    }
    return with_head(x_BSD, table, head);
  }

 private:
  Init residual_init(int64_t layer) const {
    return Builder::residual_init(layer, c_.initializer_range);
  }

  Value norm(const std::string& name, Value x, LogicalAxis axis = kEmbed) {
    const Value w = p_.weight(name + ".weight", {g_.type(x).dims.back()}, {axis},
                              c_.zero_centered_norms ? kZeros : kOnes);
    return g_.apply(
        RmsNorm{.eps = static_cast<float>(c_.norm_eps), .zero_centered = c_.zero_centered_norms},
        {x, w});
  }

  // Returns x [B, S, heads, head_dim] after the norm of `name`, if the model has one, and the
  // rotation.
  Value placed(const std::string& name, Value x, int64_t layer) {
    if (c_.attention.qk_norm) x = norm(name, x, kNone);
    const RotarySpec rope = rope_of(c_, layer);
    return g_.apply(Rope{.theta = rope.theta, .scaling = at_length(rope.scaling)},
                    {x, in_.positions});
  }

  // Some scalings depend on the length of the run's sequences, or of the text that a cache holds.
  RopeScaling at_length(RopeScaling scaling) const {
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
    const auto [q, k, v] = projected_heads(attn, h, c_.attention.bias);
    const Value o =
        attend(placed(attn + "q_norm", q, layer), placed(attn + "k_norm", k, layer), v, layer);
    Value branch = project(attn + "o_proj", o, c_.dim, c_.num_heads * c_.head_dim, {kEmbed, kHeads},
                           residual_init(layer), c_.attention.output_bias);
    if (c_.branch_norm) branch = norm(name + "post_attention_layernorm", branch);
    x_BSD = residual(x_BSD, branch, name + "attention");
    const char* before_mlp =
        c_.branch_norm ? "pre_feedforward_layernorm" : "post_attention_layernorm";
    branch = mlp(name + "mlp.", norm(name + before_mlp, x_BSD), layer);
    if (c_.branch_norm) branch = norm(name + "post_feedforward_layernorm", branch);
    return residual(x_BSD, branch, name + "mlp");
  }

  Value mlp(const std::string& name, Value h, int64_t layer) {
    const Init up_init = c_.init == InitRecipe::kTorchtitan ? residual_init(layer) : weight_init();
    const Value gate = project(name + "gate_proj", h, c_.mlp_dim, c_.dim, {kMlp, kEmbed},
                               weight_init(), c_.mlp_bias);
    const Value up =
        project(name + "up_proj", h, c_.mlp_dim, c_.dim, {kMlp, kEmbed}, up_init, c_.mlp_bias);
    const Value a_BSF = g_.apply(Swiglu{.kind = c_.gate}, {gate, up});
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
