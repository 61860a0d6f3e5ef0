// Qwen2 has biases on queries, keys and values alone; Qwen3 norms each head of queries and keys.
#include <algorithm>
#include <array>

#include "tokamak/core/error.h"
#include "tokamak/models/family.h"
#include "tokamak/models/gated_config.h"
#include "tokamak/models/gated_decoder.h"
#include "tokamak/models/rope_config.h"

namespace tokamak {
namespace {

// The sizes of the releases Qwen2.5 and Qwen3, and torchtitan's model for debugging.
constexpr std::array kQwen2Sizes{
    ModelSizes{"0.5B", 896, 24, 14, 2, 4864, 151936, true},
    ModelSizes{"1.5B", 1536, 28, 12, 2, 8960, 151936, true},
    ModelSizes{"3B", 2048, 36, 16, 2, 11008, 151936, true},
    ModelSizes{"7B", 3584, 28, 28, 4, 18944, 152064, false},
    ModelSizes{"14B", 5120, 48, 40, 8, 13824, 152064, false},
    ModelSizes{"32B", 5120, 64, 40, 8, 27648, 152064, false},
    ModelSizes{"72B", 8192, 80, 64, 8, 29568, 152064, false},
};
constexpr std::array kQwen3Sizes{
    ModelSizes{"debugmodel", 256, 8, 16, 8, 3072, 2048, true},
    ModelSizes{"0.6B", 1024, 28, 16, 8, 3072, 151936, true},
    ModelSizes{"1.7B", 2048, 28, 16, 8, 6144, 151936, true},
    ModelSizes{"4B", 2560, 36, 32, 8, 9728, 151936, true},
    ModelSizes{"8B", 4096, 36, 32, 8, 12288, 151936, false},
    ModelSizes{"14B", 5120, 40, 40, 8, 17408, 151936, false},
    ModelSizes{"32B", 5120, 64, 64, 8, 25600, 151936, false},
};
constexpr int64_t kQwen3HeadDim = 128;

void complete_qwen2(ModelSpec& c) {
  c.max_seq_len = 32768;
  c.rope.theta = 1e6;
  c.norm_eps = 1e-6;
  c.attention.bias = true;
}

void complete_qwen3(ModelSpec& c) {
  c.max_seq_len = 32768;
  c.rope.theta = 1e6;
  c.norm_eps = 1e-6;
  c.head_dim = kQwen3HeadDim;
  c.attention.qk_norm = true;
}

constexpr std::array kQwen2Models{NamedModel{"qwen2", kQwen2Sizes, complete_qwen2}};
constexpr std::array kQwen3Models{NamedModel{"qwen3", kQwen3Sizes, complete_qwen3}};

constexpr int64_t kDefaultFullLayers = 28;

// Reads which blocks have a window: those that layer_types names, else those from max_window_layers
// on.
void read_qwen_windows(const HfFields& f, ModelSpec& c) {
  const bool has_windows = f.flag_or("use_sliding_window", false) && !f.is_null("sliding_window");
  std::vector<bool> slides;
  if (f.has("layer_types")) {
    slides = read_layer_types(f, c);
    TOK_REQUIRE(has_windows || std::ranges::find(slides, true) == slides.end(),
                "{}: \"layer_types\" has \"{}\", but \"use_sliding_window\" is not set", f.what(),
                kSlidingLayer);
  } else {
    const double full = f.number_or("max_window_layers", kDefaultFullLayers);
    for (int64_t i = 0; i < c.num_layers; ++i) slides.push_back(static_cast<double>(i) >= full);
  }
  f.ignore(std::array{"max_window_layers", "sliding_window"});
  if (!has_windows) return;
  const int64_t window = f.extent_or("sliding_window", kDefaultWindow, kMostPositions);
  for (const bool slide : slides) c.attention.windows.push_back(slide ? window : 0);
}

void write_qwen_windows(const ModelSpec& c, OrderedJson& json) {
  json["layer_types"] = layer_types_json(c);
  json["sliding_window"] = sliding_window_json(c);
  json["use_sliding_window"] = !json["sliding_window"].is_null();
}

void read_qwen2(const HfFields& f, ModelSpec& c) {
  read_gated_config(f, c, {.kv_heads = 32, .max_positions = 32768});
  read_rope(f, c);
  read_qwen_windows(f, c);
  f.must_be("attention_bias", true);
  f.must_be("use_mrope", false);
  c.attention.bias = true;
}

void read_qwen3(const HfFields& f, ModelSpec& c) {
  read_gated_config(f, c, {.kv_heads = 32, .head_dim = kQwen3HeadDim, .max_positions = 32768});
  read_rope(f, c);
  read_qwen_windows(f, c);
  c.attention.bias = c.attention.output_bias = f.flag_or("attention_bias", false);
  c.attention.qk_norm = true;
}

OrderedJson qwen2_json(const ModelSpec& c) {
  OrderedJson json = gated_config_json(c, "Qwen2ForCausalLM", "qwen2");
  write_qwen_windows(c, json);
  return json;
}

OrderedJson qwen3_json(const ModelSpec& c) {
  OrderedJson json = gated_config_json(c, "Qwen3ForCausalLM", "qwen3");
  json["attention_bias"] = c.attention.bias;
  write_qwen_windows(c, json);
  return json;
}

}  // namespace

const Family kQwen2{.architecture = "Qwen2ForCausalLM",
                    .model_type = "qwen2",
                    .models = kQwen2Models,
                    .build = build_gated_decoder,
                    .read_config = read_qwen2,
                    .config_json = qwen2_json,
                    .text_defaults = {"", 4096, 32, 32, 32, 22016, 151936, false},
                    .has_windows = true};
const Family kQwen3{.architecture = "Qwen3ForCausalLM",
                    .model_type = "qwen3",
                    .models = kQwen3Models,
                    .build = build_gated_decoder,
                    .read_config = read_qwen3,
                    .config_json = qwen3_json,
                    .text_defaults = {"", 4096, 32, 32, 32, 22016, 151936, false},
                    .has_windows = true};

}  // namespace tokamak
