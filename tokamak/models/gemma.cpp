// Gemma's blocks have zero-centered norms, a GELU gate and scaled embeddings. Gemma 2 adds norms
// of each branch, windows in every other block, and caps on scores and logits. Gemma 3 has norms of
// each head in place of caps, and windows in most blocks, which rotate by a theta of their own.
#include <algorithm>
#include <array>
#include <cmath>

#include "tokamak/core/error.h"
#include "tokamak/models/family.h"
#include "tokamak/models/gated_config.h"
#include "tokamak/models/gated_decoder.h"
#include "tokamak/models/rope_config.h"

namespace tokamak {
namespace {

constexpr std::string_view kActivation = "gelu_pytorch_tanh";

// The sizes of the releases; those of Gemma 3 from 4B on describe the text models inside.
constexpr std::array kGemmaSizes{
    ModelSizes{"debugmodel", 256, 6, 4, 1, 1024, 2048, true},
    ModelSizes{"2B", 2048, 18, 8, 1, 16384, 256000, true},
    ModelSizes{"7B", 3072, 28, 16, 16, 24576, 256000, true},
};
constexpr std::array kGemma2Sizes{
    ModelSizes{"debugmodel", 256, 6, 4, 2, 1024, 2048, true},
    ModelSizes{"2B", 2304, 26, 8, 4, 9216, 256000, true},
    ModelSizes{"9B", 3584, 42, 16, 8, 14336, 256000, true},
    ModelSizes{"27B", 4608, 46, 32, 16, 36864, 256000, true},
};
constexpr std::array kGemma3Sizes{
    ModelSizes{"debugmodel", 256, 6, 4, 1, 1024, 2048, true},
    ModelSizes{"270M", 640, 18, 4, 1, 2048, 262144, true},
    ModelSizes{"1B", 1152, 26, 4, 1, 6912, 262144, true},
    ModelSizes{"4B", 2560, 34, 8, 4, 10240, 262208, true},
    ModelSizes{"12B", 3840, 48, 16, 8, 15360, 262208, true},
    ModelSizes{"27B", 5376, 62, 32, 16, 21504, 262208, true},
};

constexpr int64_t kHeadDim = 256;
constexpr int64_t kFullEvery2 = 2;
constexpr int64_t kFullEvery3 = 6;
constexpr double kScoreCap = 50.0;
constexpr double kLogitCap = 30.0;
constexpr double kQueryScalar = 256.0;
constexpr double kFullTheta = 1e6;
constexpr double kWindowTheta = 1e4;

void set_maths(ModelSpec& c) {
  c.zero_centered_norms = true;
  c.scale_embedding = true;
  c.gate = GateKind::kGelu;
}

void set_maths_2(ModelSpec& c) {
  set_maths(c);
  c.branch_norm = true;
}

void set_maths_3(ModelSpec& c) {
  set_maths_2(c);
  c.attention.qk_norm = true;
}

void complete_gemma(ModelSpec& c) {
  set_maths(c);
  if (c.flavor != "debugmodel") c.head_dim = kHeadDim;
  c.max_seq_len = 8192;
  c.rope.theta = kWindowTheta;
  c.norm_eps = 1e-6;
}

void complete_gemma2(ModelSpec& c) {
  set_maths_2(c);
  // 27B divides scores by the root of dim / heads, which is not its head_dim.
  if (c.flavor == "27B") c.attention.query_scalar = static_cast<double>(c.head_dim);
  if (c.flavor != "debugmodel") c.head_dim = c.flavor == "27B" ? 128 : kHeadDim;
  c.max_seq_len = 8192;
  c.rope.theta = kWindowTheta;
  c.norm_eps = 1e-6;
  c.attention.score_cap = kScoreCap;
  c.logit_cap = kLogitCap;
  c.attention.full_every = kFullEvery2;
  set_windows(c, kDefaultWindow);
}

void complete_gemma3(ModelSpec& c) {
  set_maths_3(c);
  const bool is_short = c.dim <= 1152;
  // 27B scales scores as Gemma 2's does.
  if (c.flavor == "27B") c.attention.query_scalar = static_cast<double>(c.head_dim);
  if (c.flavor != "debugmodel") c.head_dim = c.flavor == "27B" ? 128 : kHeadDim;
  c.max_seq_len = is_short ? 32768 : 131072;
  c.rope.theta = kFullTheta;
  if (!is_short) c.rope.scaling = {.kind = RopeScaling::Kind::kLinear, .factor = 8.0};
  c.attention.window_rope = RotarySpec{.theta = kWindowTheta};
  c.norm_eps = 1e-6;
  c.attention.full_every = kFullEvery3;
  set_windows(c, is_short ? 512 : 1024);
}

constexpr std::array kGemmaModels{NamedModel{"gemma", kGemmaSizes, complete_gemma}};
constexpr std::array kGemma2Models{NamedModel{"gemma2", kGemma2Sizes, complete_gemma2}};
constexpr std::array kGemma3Models{NamedModel{"gemma3", kGemma3Sizes, complete_gemma3}};

void read_gemma(const HfFields& f, ModelSpec& c) {
  read_gated_config(f, c,
                    {.kv_heads = 16,
                     .head_dim = kHeadDim,
                     .max_positions = 8192,
                     .tied = true,
                     .gate = GateKind::kGelu});
  set_maths(c);
  read_rope(f, c);
  c.attention.bias = c.attention.output_bias = f.flag_or("attention_bias", false);
}

// Reads which blocks have a window: those that layer_types names, else all but every
// `full_every`-th.
void read_windows(const HfFields& f, ModelSpec& c, int64_t full_every) {
  c.attention.full_every = full_every;
  const int64_t window = f.extent_or("sliding_window", kDefaultWindow, kMostPositions);
  set_windows(c, window);
  if (f.has("layer_types")) {
    std::vector<int64_t> named;
    for (const bool slides : read_layer_types(f, c)) named.push_back(slides ? window : 0);
    if (named != c.attention.windows) c.attention.full_every = 0;
    c.attention.windows = named;
  }
  TOK_REQUIRE(
      !f.is_null("sliding_window") || std::ranges::count(c.attention.windows, 0) == c.num_layers,
      "{}: \"sliding_window\" is null, but some layers have \"{}\"", f.what(), kSlidingLayer);
}

void read_query_scalar(const HfFields& f, ModelSpec& c) {
  const double scalar = f.positive_or("query_pre_attn_scalar", kQueryScalar);
  if (scalar != static_cast<double>(c.head_dim)) c.attention.query_scalar = scalar;
}

// Returns a cap: null stands for none.
double read_cap(const HfFields& f, const std::string& key, double fallback) {
  return f.is_null(key) ? 0.0 : f.positive_or(key, fallback);
}

void read_gemma2(const HfFields& f, ModelSpec& c) {
  read_gated_config(f, c,
                    {.kv_heads = 4,
                     .head_dim = kHeadDim,
                     .max_positions = 8192,
                     .tied = true,
                     .gate = GateKind::kGelu});
  set_maths_2(c);
  read_rope(f, c);
  read_windows(f, c, kFullEvery2);
  read_query_scalar(f, c);
  c.attention.score_cap = read_cap(f, "attn_logit_softcapping", kScoreCap);
  c.logit_cap = read_cap(f, "final_logit_softcapping", kLogitCap);
  c.attention.bias = c.attention.output_bias = f.flag_or("attention_bias", false);
}

void read_gemma3(const HfFields& f, ModelSpec& c) {
  read_gated_config(f, c,
                    {.kv_heads = 4,
                     .head_dim = kHeadDim,
                     .max_positions = 131072,
                     .tied = true,
                     .gate = GateKind::kGelu});
  set_maths_3(c);
  read_rope_by_layer(f, c, kFullTheta, kWindowTheta);
  read_windows(f, c, f.extent_or("sliding_window_pattern", kFullEvery3));
  read_query_scalar(f, c);
  c.attention.bias = c.attention.output_bias = f.flag_or("attention_bias", false);
}

OrderedJson gemma_json(const ModelSpec& c) {
  OrderedJson json = gated_config_json(c, "GemmaForCausalLM", "gemma");
  json["attention_bias"] = c.attention.bias;
  json["hidden_act"] = kActivation;
  return json;
}

// Returns the fields that config.json has for both Gemma 2 and Gemma 3.
OrderedJson windowed_json(const ModelSpec& c, std::string_view architecture,
                          std::string_view model_type) {
  OrderedJson json = gated_config_json(c, architecture, model_type);
  json.erase("hidden_act");
  json["attention_bias"] = c.attention.bias;
  json["hidden_activation"] = kActivation;
  const double scalar =
      c.attention.query_scalar > 0.0 ? c.attention.query_scalar : static_cast<double>(c.head_dim);
  json["query_pre_attn_scalar"] =
      scalar == std::round(scalar) ? OrderedJson(std::llround(scalar)) : OrderedJson(scalar);
  json["layer_types"] = layer_types_json(c);
  const OrderedJson window = sliding_window_json(c);
  json["sliding_window"] = window.is_null() ? OrderedJson(kDefaultWindow) : window;
  return json;
}

OrderedJson gemma2_json(const ModelSpec& c) {
  const auto cap = [](double x) { return x > 0.0 ? OrderedJson(x) : OrderedJson(nullptr); };
  OrderedJson json = windowed_json(c, "Gemma2ForCausalLM", "gemma2");
  json["attn_logit_softcapping"] = cap(c.attention.score_cap);
  json["final_logit_softcapping"] = cap(c.logit_cap);
  return json;
}

OrderedJson gemma3_json(const ModelSpec& c) {
  return windowed_json(c, "Gemma3ForCausalLM", "gemma3_text");
}

}  // namespace

const Family kGemma{.architecture = "GemmaForCausalLM",
                    .model_type = "gemma",
                    .models = kGemmaModels,
                    .build = build_gated_decoder,
                    .read_config = read_gemma,
                    .config_json = gemma_json,
                    .text_defaults = {"", 3072, 28, 16, 16, 24576, 256000, true}};
const Family kGemma2{.architecture = "Gemma2ForCausalLM",
                     .model_type = "gemma2",
                     .models = kGemma2Models,
                     .build = build_gated_decoder,
                     .read_config = read_gemma2,
                     .config_json = gemma2_json,
                     .text_defaults = {"", 2304, 26, 8, 4, 9216, 256000, true},
                     .has_windows = true};
const Family kGemma3{.architecture = "Gemma3ForCausalLM",
                     .model_type = "gemma3_text",
                     .models = kGemma3Models,
                     .build = build_gated_decoder,
                     .read_config = read_gemma3,
                     .config_json = gemma3_json,
                     .text_defaults = {"", 2304, 26, 8, 4, 9216, 262208, true},
                     .has_windows = true};

}  // namespace tokamak
