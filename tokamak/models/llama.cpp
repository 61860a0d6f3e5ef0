#include <array>

#include "tokamak/core/error.h"
#include "tokamak/models/family.h"
#include "tokamak/models/gated_decoder.h"
#include "tokamak/models/hf_fields.h"

namespace tokamak {
namespace {

// The source is Meta's releases as torchtitan's TOML-era tables give them. -4L, -7L ... keep the
// layer and cut the depth (the proxies of published benchmarks); -nemo is the model of NeMo 24.09's
// recipe, with 16 key-value heads and GPT-2's padded vocabulary.
constexpr std::array kLlama3Sizes{
    ModelSizes{"debugmodel", 256, 6, 16, 16, 768, 2048, false},
    ModelSizes{"1B", 2048, 16, 32, 8, 8192, 128256, true},
    ModelSizes{"3B", 3072, 28, 24, 8, 8192, 128256, true},
    ModelSizes{"8B", 4096, 32, 32, 8, 14336, 128256, false},
    ModelSizes{"70B", 8192, 80, 64, 8, 28672, 128256, false},
    ModelSizes{"70B-4L", 8192, 4, 64, 8, 28672, 128256, false},
    ModelSizes{"405B", 16384, 126, 128, 8, 53248, 128256, false},
    ModelSizes{"405B-7L", 16384, 7, 128, 8, 53248, 128256, false},
    ModelSizes{"405B-21L", 16384, 21, 128, 8, 53248, 128256, false},
    ModelSizes{"405B-42L", 16384, 42, 128, 8, 53248, 128256, false},
    ModelSizes{"405B-nemo", 16384, 126, 128, 16, 53248, 51200, false},
    ModelSizes{"405B-nemo-7L", 16384, 7, 128, 16, 53248, 51200, false},
    ModelSizes{"405B-nemo-21L", 16384, 21, 128, 16, 53248, 51200, false},
    ModelSizes{"405B-nemo-42L", 16384, 42, 128, 16, 53248, 51200, false},
};
constexpr std::array kLlama2Sizes{
    ModelSizes{"debugmodel", 256, 8, 16, 16, 768, 32000, false},
    ModelSizes{"271M", 1024, 16, 8, 8, 2816, 32000, false},
    ModelSizes{"1B", 2048, 18, 16, 16, 5632, 32000, false},
    ModelSizes{"7B", 4096, 32, 32, 32, 11008, 32000, false},
    ModelSizes{"13B", 5120, 40, 40, 40, 13824, 32000, false},
    ModelSizes{"26B", 5120, 80, 40, 40, 13824, 32000, false},
    ModelSizes{"70B", 8192, 80, 64, 8, 28672, 32000, false},
};

void complete_llama3(ModelSpec& c) {
  c.max_seq_len = 131072;
  c.rope_theta = 500000.0;
  c.rope_scaling.kind = RopeScaling::Kind::kLlama3;
}

void complete_llama2(ModelSpec& c) {
  c.max_seq_len = 4096;
  c.rope_theta = 10000.0;
}

constexpr std::array kModels{
    NamedModel{"llama3", kLlama3Sizes, complete_llama3},
    NamedModel{"llama2", kLlama2Sizes, complete_llama2},
    NamedModel{"llama", kLlama2Sizes, complete_llama2},
};

void read_rope(const HfFields& f, ModelSpec& c) {
  c.rope_theta = f.number_or("rope_theta", 10000.0);
  const bool is_new = f.has("rope_parameters");
  const char* key = is_new ? "rope_parameters" : "rope_scaling";
  if (!f.has(key)) return;
  const HfFields rope = f.inside(key);
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

void read_config(const HfFields& f, ModelSpec& c) {
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
}

OrderedJson config_json(const ModelSpec& c) {
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

}  // namespace

const Family kLlama{.architecture = "LlamaForCausalLM",
                    .model_type = "llama",
                    .models = kModels,
                    .build = build_gated_decoder,
                    .read_config = read_config,
                    .config_json = config_json};

}  // namespace tokamak
