#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/ranges.h>

#include "tokamak/core/error.h"
#include "tokamak/models/builder.h"
#include "tokamak/models/family.h"
#include "tokamak/models/hf_fields.h"
#include "tokamak/ops/norm/norm.h"
#include "tokamak/ops/vocab/embedding.h"

namespace tokamak {
namespace {

constexpr std::array kGpt2Sizes{
    ModelSizes{"124M", 768, 12, 12, 12, 3072, 50257, true},
    ModelSizes{"355M", 1024, 24, 16, 16, 4096, 50257, true},
    ModelSizes{"774M", 1280, 36, 20, 20, 5120, 50257, true},
    ModelSizes{"1.5B", 1600, 48, 25, 25, 6400, 50257, true},
};
constexpr std::array kGpt3Sizes{
    ModelSizes{"22B", 6144, 48, 64, 64, 24576, 50257, true},
    ModelSizes{"175B", 12288, 96, 96, 96, 49152, 50257, true},
    ModelSizes{"1T", 25600, 128, 128, 128, 102400, 50257, true},
};

void complete_gpt2(ModelSpec& c, int64_t positions) {
  c.max_seq_len = positions;
  c.attention.bias = c.attention.output_bias = c.mlp_bias = true;
  c.init = InitRecipe::kHuggingFace;
}

constexpr std::array kGpt2Models{
    NamedModel{"gpt2", kGpt2Sizes, [](ModelSpec& c) { complete_gpt2(c, 1024); }},
    NamedModel{"gpt3", kGpt3Sizes, [](ModelSpec& c) { complete_gpt2(c, 2048); }},
};

// GPT-2 has LayerNorm, learned positions, biases and GELU. Parameters have the names of
// transformers' GPT2LMHeadModel, with c_attn in three parts (q_proj, k_proj, v_proj) and weights
// stored [out, in].
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
    Value x_BSD = dropout(g_.apply(Add{}, {tokens_BSD, positions_BSD}), c_.dropout.embedding,
                          "transformer.drop");
    for (int64_t layer = 0; layer < c_.num_layers; ++layer) {
      const LabelScope scope(g_, block_label(layer));
      x_BSD = block(x_BSD, layer);
    }
    {
      const LabelScope scope(g_, norm_label());
      x_BSD = norm("transformer.ln_f", x_BSD);
    }
    return with_head(x_BSD, wte, weight_init());
  }

 private:
  Init residual_init(int64_t layer) const {
    return Builder::residual_init(
        layer, c_.initializer_range / std::sqrt(2.0 * static_cast<double>(c_.num_layers)));
  }

  Value norm(const std::string& name, Value x) {
    const Value w = p_.weight(name + ".weight", {c_.dim}, {kEmbed}, kOnes);
    const Value b = p_.weight(name + ".bias", {c_.dim}, {kEmbed}, kZeros);
    return g_.apply(LayerNorm{.eps = static_cast<float>(c_.norm_eps)}, {x, w, b});
  }

  Value block(Value x_BSD, int64_t layer) {
    const std::string name = fmt::format("transformer.h.{}.", layer);
    const int64_t D = c_.dim;
    const Value h = norm(name + "ln_1", x_BSD);
    const auto [q, k, v] = projected_heads(name + "attn.", h, true);
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

ModelOutputs build(Graph& graph, Parameters& parameters, const ModelSpec& config,
                   const ModelInputs& inputs, uint64_t seed) {
  return Gpt2(graph, parameters, config, inputs, seed).build();
}

// Names that transformers knows, its favourite of each kind first. "gelu_fast" and the like are one
// formula.
constexpr std::array<std::pair<std::string_view, GeluKind>, 11> kActivations{
    {{"gelu_new", GeluKind::kTanh},
     {"gelu_pytorch_tanh", GeluKind::kTanh},
     {"gelu_fast", GeluKind::kTanh},
     {"gelu_accurate", GeluKind::kTanh},
     {"gelu", GeluKind::kExact},
     {"gelu_python", GeluKind::kExact},
     {"quick_gelu", GeluKind::kQuick},
     {"silu", GeluKind::kSilu},
     {"swish", GeluKind::kSilu},
     {"relu", GeluKind::kRelu},
     {"tanh", GeluKind::kHyperbolic}}};

GeluKind gelu_of(std::string_view name, std::string_view what) {
  std::vector<std::string_view> names;
  for (const auto& [known, kind] : kActivations) {
    if (known == name) return kind;
    names.push_back(known);
  }
  fail("{}: \"activation_function\": \"{}\" is not supported, only {}", what, name,
       fmt::join(names, ", "));
}

std::string_view activation_name(GeluKind kind) {
  return std::ranges::find_if(kActivations, [&](const auto& row) { return row.second == kind; })
      ->first;
}

void read_gpt2(const HfFields& f, ModelSpec& c) {
  c.vocab_size = f.extent_or("vocab_size", 50257, kMostVocab);
  // transformers takes the names of other families, too, and prefers them.
  const auto named = [&](const char* key, const char* other) { return f.has(other) ? other : key; };
  c.dim = f.extent_or(named("n_embd", "hidden_size"), 768);
  c.num_layers = f.extent_or(named("n_layer", "num_hidden_layers"), 12, kMostLayers);
  c.num_heads = f.extent_or(named("n_head", "num_attention_heads"), 12);
  TOK_REQUIRE(c.dim % c.num_heads == 0, "{}: \"n_embd\" = {} is not a multiple of {} heads",
              f.what(), c.dim, c.num_heads);
  c.num_kv_heads = c.num_heads;
  c.head_dim = c.dim / c.num_heads;
  c.mlp_dim = f.extent_or("n_inner", 4 * c.dim);
  c.max_seq_len =
      f.extent_or(named("n_positions", "max_position_embeddings"), 1024, kMostPositions);
  c.tied = f.flag_or("tie_word_embeddings", true);
  c.norm_eps = f.positive_or("layer_norm_epsilon", 1e-5);
  c.attention.bias = c.attention.output_bias = c.mlp_bias = true;
  c.dropout.embedding = f.probability_or("embd_pdrop", 0.1);
  c.dropout.attention = f.probability_or("attn_pdrop", 0.1);
  c.dropout.residual = f.probability_or("resid_pdrop", 0.1);
  c.initializer_range = f.positive_or("initializer_range", 0.02);
  c.gelu = gelu_of(f.text_or("activation_function", "gelu_new"), f.what());
  c.attention.scaled = f.flag_or("scale_attn_weights", true);
  c.attention.scale_by_layer = f.flag_or("scale_attn_by_inverse_layer_idx", false);
  f.must_be("add_cross_attention", false);
  f.must_be("attention_bias", true);
  f.must_be("mlp_bias", true);
  f.ignore(std::array{"reorder_and_upcast_attn", "n_embd", "n_layer", "n_head", "n_positions"});
}

OrderedJson gpt2_json(const ModelSpec& c) {
  return {{"activation_function", activation_name(c.gelu)},
          {"architectures", {"GPT2LMHeadModel"}},
          {"attn_pdrop", c.dropout.attention},
          {"embd_pdrop", c.dropout.embedding},
          {"initializer_range", c.initializer_range},
          {"layer_norm_epsilon", c.norm_eps},
          {"model_type", "gpt2"},
          {"n_embd", c.dim},
          {"n_head", c.num_heads},
          {"n_inner", c.mlp_dim == 4 * c.dim ? OrderedJson(nullptr) : OrderedJson(c.mlp_dim)},
          {"n_layer", c.num_layers},
          {"n_positions", c.max_seq_len},
          {"resid_pdrop", c.dropout.residual},
          {"scale_attn_by_inverse_layer_idx", c.attention.scale_by_layer},
          {"scale_attn_weights", c.attention.scaled}};
}

// transformers stores its Conv1D weights [in, out].
constexpr std::array<std::string_view, 3> kTransposed{"c_attn.weight", "c_proj.weight",
                                                      "c_fc.weight"};

}  // namespace

const Family kGpt2{.architecture = "GPT2LMHeadModel",
                   .model_type = "gpt2",
                   .models = kGpt2Models,
                   .build = build,
                   .read_config = read_gpt2,
                   .config_json = gpt2_json,
                   .learns_positions = true,
                   .weights = {.joined = "c_attn", .transposed = kTransposed}};

}  // namespace tokamak
