#include <array>

#include "tokamak/models/family.h"
#include "tokamak/models/gated_config.h"
#include "tokamak/models/gated_decoder.h"
#include "tokamak/models/rope_config.h"

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
  c.rope.theta = 500000.0;
  c.rope.scaling.kind = RopeScaling::Kind::kLlama3;
}

void complete_llama2(ModelSpec& c) {
  c.max_seq_len = 4096;
  c.rope.theta = 10000.0;
}

constexpr std::array kLlamaModels{
    NamedModel{"llama3", kLlama3Sizes, complete_llama3},
    NamedModel{"llama2", kLlama2Sizes, complete_llama2},
    NamedModel{"llama", kLlama2Sizes, complete_llama2},
};

void read_llama(const HfFields& f, ModelSpec& c) {
  read_gated_config(f, c, {.max_positions = 2048});
  read_rope(f, c);
  c.attention.bias = c.attention.output_bias = f.flag_or("attention_bias", false);
  c.mlp_bias = f.flag_or("mlp_bias", false);
}

OrderedJson llama_json(const ModelSpec& c) {
  OrderedJson json = gated_config_json(c, "LlamaForCausalLM", "llama");
  json["attention_bias"] = c.attention.bias;
  json["mlp_bias"] = c.mlp_bias;
  return json;
}

}  // namespace

const Family kLlama{.architecture = "LlamaForCausalLM",
                    .model_type = "llama",
                    .models = kLlamaModels,
                    .build = build_gated_decoder,
                    .read_config = read_llama,
                    .config_json = llama_json,
                    .text_defaults = {"", 4096, 32, 32, 0, 11008, 32000, false}};

}  // namespace tokamak
