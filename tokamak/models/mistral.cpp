#include <algorithm>
#include <array>

#include "tokamak/models/family.h"
#include "tokamak/models/gated_config.h"
#include "tokamak/models/gated_decoder.h"
#include "tokamak/models/rope_config.h"

namespace tokamak {
namespace {

// The sizes of Mistral AI's releases: Mistral-7B-v0.3, Mistral-Nemo-Base-2407 (named 12B) and
// Mistral-Small-24B-Base-2501.
constexpr std::array kMistralSizes{
    ModelSizes{"debugmodel", 256, 6, 16, 4, 768, 2048, false},
    ModelSizes{"7B", 4096, 32, 32, 8, 14336, 32768, false},
    ModelSizes{"12B", 5120, 40, 32, 8, 14336, 131072, false},
    ModelSizes{"24B", 5120, 40, 32, 8, 32768, 131072, false},
};

void complete_mistral(ModelSpec& c) {
  const bool is_small = c.dim < 5120;
  if (!is_small) c.head_dim = 128;
  c.max_seq_len = 32768;
  c.rope.theta = is_small ? 1e6 : c.mlp_dim == 14336 ? 1e6 : 1e8;
}

constexpr std::array kMistralModels{NamedModel{"mistral", kMistralSizes, complete_mistral}};

void read_mistral(const HfFields& f, ModelSpec& c) {
  read_gated_config(f, c, {.kv_heads = 8, .max_positions = 131072});
  read_rope(f, c);
  f.ignore(std::array{"use_sliding_window"});
  if (f.is_null("sliding_window")) return;
  c.attention.windows.assign(c.num_layers,
                             f.extent_or("sliding_window", kDefaultWindow, kMostPositions));
  f.must_be("use_sliding_window", true);
  if (!f.has("layer_types")) return;
  const std::vector<bool> slides = read_layer_types(f, c);
  for (size_t layer = 0; layer < slides.size(); ++layer)
    if (!slides[layer]) c.attention.windows[layer] = 0;
}

OrderedJson mistral_json(const ModelSpec& c) {
  OrderedJson json = gated_config_json(c, "MistralForCausalLM", "mistral");
  json["sliding_window"] = sliding_window_json(c);
  if (std::ranges::count(c.attention.windows, 0) > 0) json["layer_types"] = layer_types_json(c);
  return json;
}

}  // namespace

const Family kMistral{.architecture = "MistralForCausalLM",
                      .model_type = "mistral",
                      .models = kMistralModels,
                      .build = build_gated_decoder,
                      .read_config = read_mistral,
                      .config_json = mistral_json,
                      .text_defaults = {"", 4096, 32, 32, 8, 14336, 32000, false},
                      .has_windows = true};

}  // namespace tokamak
