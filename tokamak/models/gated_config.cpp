#include "tokamak/models/gated_config.h"

#include <algorithm>

#include "tokamak/core/error.h"
#include "tokamak/models/rope_config.h"

namespace tokamak {
namespace {

// Families differ in which of these members transformers looks at, so none may ask for another.
void read_activation(const HfFields& f, GateKind gate) {
  for (const char* key : {"hidden_act", "hidden_activation", "activation_function"}) {
    const std::string name = f.text_or(key, "");
    if (gate == GateKind::kSilu) {
      if (name != "swish") f.must_be(key, "silu");  // swish is its old name
    } else if (name != "gelu" || key != std::string_view("hidden_act")) {
      // Gemma's first releases say gelu and mean its approximation.
      f.must_be(key, "gelu_pytorch_tanh");
    }
  }
}

}  // namespace

void read_gated_config(const HfFields& f, ModelSpec& c, const GatedDefaults& defaults) {
  c.vocab_size = f.extent("vocab_size", kMostVocab);
  c.dim = f.extent("hidden_size");
  c.num_layers = f.extent("num_hidden_layers", kMostLayers);
  c.num_heads = f.extent("num_attention_heads");
  const bool is_as_heads = defaults.kv_heads == 0 || f.is_null("num_key_value_heads");
  c.num_kv_heads =
      f.extent_or("num_key_value_heads", is_as_heads ? c.num_heads : defaults.kv_heads);
  TOK_REQUIRE(c.num_heads % c.num_kv_heads == 0,
              "{}: \"num_key_value_heads\" = {} does not divide {} heads", f.what(), c.num_kv_heads,
              c.num_heads);
  if (defaults.head_dim > 0)
    TOK_REQUIRE(!f.is_null("head_dim"), "{}: \"head_dim\": wanted a size, got null", f.what());
  const bool divides = f.has("head_dim") || defaults.head_dim > 0;
  TOK_REQUIRE(divides || c.dim % c.num_heads == 0,
              "{}: \"hidden_size\" = {} is not a multiple of {} heads", f.what(), c.dim,
              c.num_heads);
  c.head_dim =
      f.extent_or("head_dim", defaults.head_dim > 0 ? defaults.head_dim : c.dim / c.num_heads);
  TOK_REQUIRE(c.head_dim % 2 == 0, "{}: \"head_dim\" = {} is odd, rotary positions need pairs",
              f.what(), c.head_dim);
  c.mlp_dim = f.extent("intermediate_size");
  c.max_seq_len = f.extent_or("max_position_embeddings", defaults.max_positions, kMostPositions);
  c.tied = f.flag_or("tie_word_embeddings", defaults.tied);
  c.norm_eps = f.positive_or("rms_norm_eps", 1e-6);
  c.dropout.attention = f.probability_or("attention_dropout", 0.0);
  c.initializer_range = f.positive_or("initializer_range", 0.02);
  c.gate = defaults.gate;
  read_activation(f, c.gate);
}

std::vector<bool> read_layer_types(const HfFields& f, const ModelSpec& c) {
  const std::vector<std::string> types = f.texts("layer_types");
  TOK_REQUIRE(std::ssize(types) == c.num_layers,
              "{}: \"layer_types\": wanted {}, one for each layer, got {}", f.what(), c.num_layers,
              types.size());
  std::vector<bool> slides;
  for (const std::string& type : types) {
    TOK_REQUIRE(type == kFullLayer || type == kSlidingLayer,
                "{}: \"layer_types\": \"{}\" is not supported, only \"{}\" and \"{}\"", f.what(),
                type, kFullLayer, kSlidingLayer);
    slides.push_back(type == kSlidingLayer);
  }
  return slides;
}

OrderedJson layer_types_json(const ModelSpec& c) {
  OrderedJson types = OrderedJson::array();
  for (int64_t i = 0; i < c.num_layers; ++i)
    types.push_back(window_of(c, i) > 0 ? kSlidingLayer : kFullLayer);
  return types;
}

OrderedJson sliding_window_json(const ModelSpec& c) {
  if (c.attention.windows.empty()) return nullptr;
  const int64_t widest = *std::ranges::max_element(c.attention.windows);
  return widest > 0 ? OrderedJson(widest) : OrderedJson(nullptr);
}

OrderedJson gated_config_json(const ModelSpec& c, std::string_view architecture,
                              std::string_view model_type) {
  OrderedJson json{{"architectures", {architecture}},
                   {"attention_dropout", c.dropout.attention},
                   {"head_dim", c.head_dim},
                   {"hidden_act", "silu"},
                   {"hidden_size", c.dim},
                   {"initializer_range", c.initializer_range},
                   {"intermediate_size", c.mlp_dim},
                   {"max_position_embeddings", c.max_seq_len},
                   {"model_type", model_type},
                   {"num_attention_heads", c.num_heads},
                   {"num_hidden_layers", c.num_layers},
                   {"num_key_value_heads", c.num_kv_heads},
                   {"rms_norm_eps", c.norm_eps}};
  write_rope(c, json);
  return json;
}

}  // namespace tokamak
