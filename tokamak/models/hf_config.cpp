#include "tokamak/models/hf_config.h"

#include <array>

#include "tokamak/core/error.h"
#include "tokamak/core/json.h"

namespace tokamak {
namespace {

constexpr int64_t kMaxExtent = int64_t{1} << 31U;

// Reads members of one config.json with its name in every message.
class Fields {
 public:
  Fields(const Json& json, std::string_view what) : json_(json), what_(what) {}

  int64_t extent(const std::string& key) const {
    return checked(key, json_member<int64_t>(json_, key, what_));
  }

  int64_t extent_or(const std::string& key, int64_t fallback) const {
    return checked(key, json_member_or<int64_t>(json_, key, fallback, what_));
  }

  double number_or(const std::string& key, double fallback) const {
    return json_member_or<double>(json_, key, fallback, what_);
  }

  bool flag_or(const std::string& key, bool fallback) const {
    return json_member_or<bool>(json_, key, fallback, what_);
  }

  std::string text_or(const std::string& key, const std::string& fallback) const {
    return json_member_or<std::string>(json_, key, fallback, what_);
  }

  double probability_or(const std::string& key, double fallback) const {
    const double p = number_or(key, fallback);
    TOK_REQUIRE(p >= 0.0 && p < 1.0, "{}: \"{}\": wanted a probability below 1, got {}", what_, key,
                p);
    return p;
  }

  bool has(const std::string& key) const { return json_.contains(key) && !json_[key].is_null(); }

  // A field that must have one value, since any other changes the maths.
  void must_be(const std::string& key, const Json& only) const {
    if (!has(key)) return;
    TOK_REQUIRE(json_[key] == only, "{}: \"{}\": {} is not supported, only {}", what_, key,
                json_[key].dump().substr(0, 60), only.dump());
  }

  void must_be_absent(const std::string& key) const {
    TOK_REQUIRE(!has(key), "{}: \"{}\" is not supported", what_, key);
  }

  Fields inside(const std::string& key) const {
    TOK_REQUIRE(json_[key].is_object(), "{}: \"{}\": wanted an object", what_, key);
    return {json_[key], what_};
  }

  std::string_view what() const { return what_; }

 private:
  int64_t checked(const std::string& key, int64_t value) const {
    TOK_REQUIRE(value > 0 && value < kMaxExtent, "{}: \"{}\": wanted a positive size, got {}",
                what_, key, value);
    return value;
  }

  const Json& json_;
  std::string_view what_;
};

void read_rope(const Fields& f, ModelSpec& c) {
  c.rope_theta = f.number_or("rope_theta", 10000.0);
  const bool is_new = f.has("rope_parameters");
  const char* key = is_new ? "rope_parameters" : "rope_scaling";
  if (!f.has(key)) return;
  const Fields rope = f.inside(key);
  c.rope_theta = rope.number_or("rope_theta", c.rope_theta);
  const std::string type = rope.text_or("rope_type", rope.text_or("type", "default"));
  if (type == "default") return;
  TOK_REQUIRE(type == "llama3",
              "{}: \"{}\": rope_type \"{}\" is not supported, only \"default\" and \"llama3\"",
              f.what(), key, type);
  c.rope_scaling = {.kind = RopeScaling::Kind::kLlama3,
                    .factor = rope.number_or("factor", 8.0),
                    .low_freq_factor = rope.number_or("low_freq_factor", 1.0),
                    .high_freq_factor = rope.number_or("high_freq_factor", 4.0),
                    .original_max_position_embeddings =
                        rope.number_or("original_max_position_embeddings", 8192.0)};
}

ModelSpec read_llama(const Fields& f) {
  ModelSpec c{
      .family = Family::kLlama, .name = "hf", .flavor = "hf", .init = InitRecipe::kHuggingFace};
  c.vocab_size = f.extent("vocab_size");
  c.dim = f.extent("hidden_size");
  c.num_layers = f.extent("num_hidden_layers");
  c.num_heads = f.extent("num_attention_heads");
  c.num_kv_heads = f.extent_or("num_key_value_heads", c.num_heads);
  TOK_REQUIRE(c.num_heads % c.num_kv_heads == 0,
              "{}: \"num_key_value_heads\" = {} does not divide {} heads", f.what(), c.num_kv_heads,
              c.num_heads);
  TOK_REQUIRE(f.has("head_dim") || c.dim % c.num_heads == 0,
              "{}: \"hidden_size\" = {} is no multiple of {} heads", f.what(), c.dim, c.num_heads);
  c.head_dim = f.extent_or("head_dim", c.dim / c.num_heads);
  TOK_REQUIRE(c.head_dim % 2 == 0, "{}: \"head_dim\" = {} is odd, rotary positions need pairs",
              f.what(), c.head_dim);
  c.mlp_dim = f.extent("intermediate_size");
  c.max_seq_len = f.extent_or("max_position_embeddings", 2048);
  c.tied = f.flag_or("tie_word_embeddings", false);
  c.norm_eps = f.number_or("rms_norm_eps", 1e-6);
  c.attention_bias = f.flag_or("attention_bias", false);
  c.mlp_bias = f.flag_or("mlp_bias", false);
  c.attention_dropout = f.probability_or("attention_dropout", 0.0);
  c.initializer_range = f.number_or("initializer_range", 0.02);
  f.must_be("hidden_act", "silu");
  f.must_be("partial_rotary_factor", 1.0);
  f.must_be_absent("sliding_window");
  read_rope(f, c);
  return c;
}

ModelSpec read_gpt2(const Fields& f) {
  ModelSpec c{
      .family = Family::kGpt2, .name = "hf", .flavor = "hf", .init = InitRecipe::kHuggingFace};
  c.vocab_size = f.extent_or("vocab_size", 50257);
  c.dim = f.extent_or("n_embd", 768);
  c.num_layers = f.extent_or("n_layer", 12);
  c.num_heads = f.extent_or("n_head", 12);
  TOK_REQUIRE(c.dim % c.num_heads == 0, "{}: \"n_embd\" = {} is no multiple of {} heads", f.what(),
              c.dim, c.num_heads);
  c.num_kv_heads = c.num_heads;
  c.head_dim = c.dim / c.num_heads;
  c.mlp_dim = f.extent_or("n_inner", 4 * c.dim);
  c.max_seq_len = f.extent_or("n_positions", 1024);
  c.tied = f.flag_or("tie_word_embeddings", true);
  c.norm_eps = f.number_or("layer_norm_epsilon", 1e-5);
  c.attention_bias = c.mlp_bias = true;
  c.embedding_dropout = f.probability_or("embd_pdrop", 0.1);
  c.attention_dropout = f.probability_or("attn_pdrop", 0.1);
  c.residual_dropout = f.probability_or("resid_pdrop", 0.1);
  c.initializer_range = f.number_or("initializer_range", 0.02);
  const std::string act = f.text_or("activation_function", "gelu_new");
  const bool is_tanh = act == "gelu_new" || act == "gelu_pytorch_tanh";
  TOK_REQUIRE(is_tanh || act == "gelu",
              "{}: \"activation_function\": \"{}\" is not supported, only \"gelu_new\", "
              "\"gelu_pytorch_tanh\" and \"gelu\"",
              f.what(), act);
  c.gelu = is_tanh ? GeluKind::kTanh : GeluKind::kExact;
  f.must_be("scale_attn_weights", true);
  f.must_be("scale_attn_by_inverse_layer_idx", false);
  f.must_be("add_cross_attention", false);
  return c;
}

std::string architecture(const Fields& f, const Json& json) {
  std::string type = f.text_or("model_type", "");
  if (json.contains("architectures") && json["architectures"].is_array() &&
      !json["architectures"].empty()) {
    const Json& first = json["architectures"][0];
    if (first.is_string()) return first.get<std::string>();
  }
  if (type == "llama") return "LlamaForCausalLM";
  if (type == "gpt2") return "GPT2LMHeadModel";
  return type;
}

OrderedJson llama_json(const ModelSpec& c) {
  OrderedJson rope{{"rope_theta", c.rope_theta}, {"rope_type", "default"}};
  if (c.rope_scaling.kind == RopeScaling::Kind::kLlama3) {
    rope = {{"factor", c.rope_scaling.factor},
            {"high_freq_factor", c.rope_scaling.high_freq_factor},
            {"low_freq_factor", c.rope_scaling.low_freq_factor},
            {"original_max_position_embeddings",
             static_cast<int64_t>(c.rope_scaling.original_max_position_embeddings)},
            {"rope_theta", c.rope_theta},
            {"rope_type", "llama3"}};
  }
  return {{"architectures", {"LlamaForCausalLM"}},
          {"attention_bias", c.attention_bias},
          {"attention_dropout", c.attention_dropout},
          {"head_dim", c.head_dim},
          {"hidden_act", "silu"},
          {"hidden_size", c.dim},
          {"initializer_range", c.initializer_range},
          {"intermediate_size", c.mlp_dim},
          {"max_position_embeddings", c.max_seq_len},
          {"mlp_bias", c.mlp_bias},
          {"model_type", "llama"},
          {"num_attention_heads", c.num_heads},
          {"num_hidden_layers", c.num_layers},
          {"num_key_value_heads", c.num_kv_heads},
          {"rms_norm_eps", c.norm_eps},
          {"rope_parameters", rope}};
}

OrderedJson gpt2_json(const ModelSpec& c) {
  return {{"activation_function", c.gelu == GeluKind::kTanh ? "gelu_new" : "gelu"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"attn_pdrop", c.attention_dropout},
          {"embd_pdrop", c.embedding_dropout},
          {"initializer_range", c.initializer_range},
          {"layer_norm_epsilon", c.norm_eps},
          {"model_type", "gpt2"},
          {"n_embd", c.dim},
          {"n_head", c.num_heads},
          {"n_inner", c.mlp_dim == 4 * c.dim ? OrderedJson(nullptr) : OrderedJson(c.mlp_dim)},
          {"n_layer", c.num_layers},
          {"n_positions", c.max_seq_len},
          {"resid_pdrop", c.residual_dropout}};
}

void put_ids(OrderedJson& json, const SpecialIds& ids) {
  json["bos_token_id"] = ids.bos ? OrderedJson(*ids.bos) : OrderedJson(nullptr);
  json["eos_token_id"] = ids.eos ? OrderedJson(*ids.eos) : OrderedJson(nullptr);
}

}  // namespace

ModelSpec parse_hf_config(std::string_view text, std::string_view what) {
  const Json json = parse_json(text, what);
  TOK_REQUIRE(json.is_object(), "{}: wanted a JSON object", what);
  const Fields f(json, what);
  f.must_be_absent("quantization_config");
  const std::string arch = architecture(f, json);
  ModelSpec config;
  if (arch == "LlamaForCausalLM") {
    config = read_llama(f);
  } else if (arch == "GPT2LMHeadModel") {
    config = read_gpt2(f);
  } else {
    fail("{}: architecture \"{}\" is not supported, only LlamaForCausalLM and GPT2LMHeadModel",
         what, arch);
  }
  config.hf_config = std::string(text);
  return config;
}

std::string to_hf_config(const ModelSpec& c, DType dtype, const SpecialIds& ids) {
  if (!c.hf_config.empty()) {
    OrderedJson json = parse_ordered_json(c.hf_config, "config.json");
    json[json.contains("torch_dtype") ? "torch_dtype" : "dtype"] = name_of(dtype);
    return json.dump(2) + "\n";
  }
  OrderedJson json = c.family == Family::kLlama ? llama_json(c) : gpt2_json(c);
  json["vocab_size"] = c.vocab_size;
  json["tie_word_embeddings"] = c.tied;
  json["dtype"] = name_of(dtype);
  json["use_cache"] = true;
  put_ids(json, ids);
  return json.dump(2) + "\n";
}

std::string to_hf_generation_config(const ModelSpec& c, const SpecialIds& ids) {
  OrderedJson json{{"_from_model_config", true}};
  put_ids(json, ids);
  if (!c.hf_config.empty()) {
    const OrderedJson found = parse_ordered_json(c.hf_config, "config.json");
    for (const char* key : {"bos_token_id", "eos_token_id"}) {
      if (found.contains(key)) json[key] = found[key];
    }
  }
  return json.dump(2) + "\n";
}

}  // namespace tokamak
