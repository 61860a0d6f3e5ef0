// Llama whose queries and keys are normed before they are rotated.
#include <array>

#include "tokamak/models/family.h"
#include "tokamak/models/gated_config.h"
#include "tokamak/models/gated_decoder.h"
#include "tokamak/models/rope_config.h"

namespace tokamak {
namespace {

constexpr std::array kSizes{ModelSizes{"debugmodel", 256, 6, 16, 16, 768, 2048, false}};

void complete(ModelSpec& c) {
  c.max_seq_len = 8192;
  c.rope.theta = 500000.0;
  c.attention.qk_norm = true;
}

constexpr std::array kModels{NamedModel{"llama_qk_norm", kSizes, complete}};

void read_config(const HfFields& f, ModelSpec& c) {
  read_gated_config(f, c, {.max_positions = 8192});
  read_rope(f, c);
  c.attention.qk_norm = true;
}

OrderedJson config_json(const ModelSpec& c) {
  return gated_config_json(c, "LlamaQkNormForCausalLM", "llama_qk_norm");
}

}  // namespace

extern const Family kLlamaQkNorm{.architecture = "LlamaQkNormForCausalLM",
                                 .model_type = "llama_qk_norm",
                                 .models = kModels,
                                 .build = build_gated_decoder,
                                 .read_config = read_config,
                                 .config_json = config_json};

}  // namespace tokamak
