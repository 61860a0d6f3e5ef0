#include "tokamak/models/hf_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/core/names.h"
#include "tokamak/models/family.h"
#include "tokamak/models/gated_config.h"
#include "tokamak/models/hf_fields.h"
#include "tokamak/models/model_spec.h"

namespace tokamak {
namespace {

// Models for images and text that hold one of our models: only this text model is used.
struct ModelWithText {
  std::string_view architecture;
  std::string_view model_type;
  std::string_view text_type;  ///< of a text_config that names no model_type
};

constexpr std::array kModelsWithText{
    ModelWithText{"Gemma3ForConditionalGeneration", "gemma3", "gemma3_text"},
    ModelWithText{"Mistral3ForConditionalGeneration", "mistral3", "mistral"}};

// These members stand outside of text_config, and hold for it, too.
constexpr std::array kSharedMembers{"bos_token_id",         "eos_token_id",       "pad_token_id",
                                    "tie_word_embeddings",  "torch_dtype",        "dtype",
                                    "transformers_version", "quantization_config"};

// These belong to the images.
constexpr std::array kImageMembers{"vision_config",
                                   "mm_tokens_per_image",
                                   "boi_token_index",
                                   "eoi_token_index",
                                   "boi_token_id",
                                   "eoi_token_id",
                                   "image_token_index",
                                   "image_token_id",
                                   "initializer_range",
                                   "projector_hidden_act",
                                   "multimodal_projector_bias",
                                   "spatial_merge_size",
                                   "vision_feature_layer"};

const ModelWithText* model_with_text(const HfFields& f) {
  const std::string name = f.first_text_or("architectures", "");
  const std::string type = f.text_or("model_type", "");
  const bool has_no_head = name.empty() || name.ends_with("Model");
  const auto* found = std::ranges::find_if(kModelsWithText, [&](auto& m) {
    return m.architecture == name || (has_no_head && m.model_type == type);
  });
  return found == kModelsWithText.end() ? nullptr : found;
}

const Family& family_of_text(const std::string& type, std::string_view what) {
  std::vector<std::string_view> types;
  for (const Family* family : families()) {
    if (family->text_defaults.dim == 0) continue;
    if (family->model_type == type) return *family;
    types.push_back(family->model_type);
  }
  fail("{}: \"text_config\": model_type \"{}\" is not supported, only {}", what, type,
       fmt::join(types, ", "));
}

// save_pretrained leaves out what equals the defaults, but only inside of a configuration.
void add_sizes(const ModelSizes& sizes, OrderedJson& json) {
  for (const auto& [key, size] : {std::pair{"hidden_size", sizes.dim},
                                  {"num_hidden_layers", sizes.layers},
                                  {"num_attention_heads", sizes.heads},
                                  {"num_key_value_heads", sizes.kv_heads},
                                  {"intermediate_size", sizes.mlp},
                                  {"vocab_size", sizes.vocab}}) {
    if (size > 0 && !json.contains(key)) json[key] = size;
  }
}

// Returns the config.json that transformers would write for the text model inside, or nothing if
// `f`, which is parsed from `text`, describes no such model. Throws Error "WHAT: ..." if the text
// model is unknown.
std::optional<std::string> text_model_config(const HfFields& f, std::string_view text) {
  const std::string_view what = f.what();
  const ModelWithText* model = model_with_text(f);
  if (model == nullptr) return std::nullopt;
  TOK_REQUIRE(f.has("text_config"), "{}: there is no \"text_config\", which {} needs", what,
              model->architecture);
  const HfFields text_fields = f.inside("text_config");
  text_fields.ignore_all();  // they are read from what this returns
  // transformers reads them in a Mistral that stands alone, and gives all layers a window here.
  TOK_REQUIRE(model->text_type != "mistral" || !text_fields.has("layer_types"),
              "{}: \"text_config\": \"layer_types\" are not supported in {}", what,
              model->architecture);
  const std::string type = text_fields.text_or("model_type", std::string(model->text_type));
  const Family& family = family_of_text(type, what);
  const OrderedJson outside = parse_ordered_json(text, what);
  OrderedJson inside = outside["text_config"];
  if (f.has("torch_dtype") || f.has("dtype")) {
    inside.erase("torch_dtype");
    inside.erase("dtype");
  }
  for (const char* key : kSharedMembers) {
    if (f.has(key)) inside[key] = outside[key];
  }
  f.ignore(kImageMembers);
  inside["architectures"] = {family.architecture};
  inside["model_type"] = type;
  add_sizes(family.text_defaults, inside);
  return inside.dump();
}

// Returns the architectures of such models.
std::vector<std::string_view> models_with_text() {
  std::vector<std::string_view> names;
  names.reserve(kModelsWithText.size());
  for (const ModelWithText& model : kModelsWithText) names.push_back(model.architecture);
  return names;
}

// Members of these families' configurations that transformers 4 and 5 read but never compute a loss
// with, as tools/compare_config_members.py lists them: types, ids, how to generate, GPT-2's
// summaries.
constexpr std::string_view kWithoutEffect =
    " add_cross_attention assistant_confidence_threshold assistant_early_exit "
    "assistant_ensemble_weight assistant_lookbehind attn_implementation bad_words_ids "
    "begin_suppress_tokens bos_token_id cache_config cache_implementation "
    "chunk_size_feed_forward compile_config constraints continuous_batching_config "
    "cross_attention_hidden_size decoder_start_token_id disable_compile diversity_penalty "
    "do_sample dola_layers dtype early_stopping encoder_no_repeat_ngram_size "
    "encoder_repetition_penalty eos_token_id epsilon_cutoff eta_cutoff experts_implementation "
    "exponential_decay_length_penalty finetuning_task force_words_ids forced_bos_token_id "
    "forced_eos_token_id gradient_checkpointing guidance_scale id2label is_assistant is_decoder "
    "is_encoder_decoder label2id length_penalty low_memory max_cache_len max_length "
    "max_matching_ngram_size max_new_tokens max_time min_length min_new_tokens min_p "
    "name_or_path no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule "
    "num_beam_groups num_beams num_labels num_return_sequences output_attentions "
    "output_hidden_states output_logits output_scores pad_token_id penalty_alpha "
    "prefill_chunk_size prefix pretraining_tp problem_type prompt_lookup_num_tokens "
    "remove_invalid_values renormalize_logits repetition_penalty return_dict "
    "return_dict_in_generate return_legacy_cache sep_token_id sequence_bias speculation_type "
    "stop_strings summary_activation summary_first_dropout summary_proj_to_labels summary_type "
    "summary_use_proj suppress_tokens target_lookbehind task_specific_params temperature "
    "tf_legacy_loss tie_encoder_decoder token_healing tokenizer_class top_h top_k top_p "
    "torch_dtype torchscript transformers_version typical_p use_bfloat16 use_cache use_mtp "
    "watermarking_config ";

// Members by which other models compute something else. transformers ignores most of them in our
// families, but who wrote them did not mean that.
constexpr std::string_view kOfOtherMaths =
    " alibi attention_bias attention_chunk_size attention_multiplier attn_logit_softcapping "
    "clip_qkv dim_model_base final_logit_softcapping mlp_bias no_rope_layers per_layer_config "
    "pruned_heads qk_layernorm query_pre_attn_scalar scale_depth sliding_window use_mrope "
    "use_parallel_residual use_qk_norm ";
constexpr std::string_view kOfOtherMathsUnlessOne =
    " embedding_multiplier logit_scale logits_scaling n_routed_experts num_experts "
    "num_local_experts residual_multiplier rotary_pct scale_emb ";

constexpr size_t kMostShown = 10;

bool holds(std::string_view names, const std::string& name) {
  return names.find(" " + name + " ") != std::string_view::npos;
}

void require_layer_types(const HfFields& f, const ModelSpec& c) {
  const std::vector<bool> slides = read_layer_types(f, c);
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const bool has_window = window_of(c, i) > 0;
    TOK_REQUIRE(slides[static_cast<size_t>(i)] == has_window,
                "{}: \"layer_types\": layer {} {} a window in {}, whatever \"layer_types\" says: "
                "remove it, or name the architecture that it belongs to",
                f.what(), i, has_window ? "has" : "has not", c.family->architecture);
  }
}

bool asks_for_other_maths(const HfFields& f, const std::string& name) {
  if (holds(kOfOtherMathsUnlessOne, name)) return f.asks(name) && f.number_or(name, 1.0) != 1.0;
  if (name == "sliding_window" && !f.flag_or("use_sliding_window", true)) return false;
  return holds(kOfOtherMaths, name) && f.asks(name);
}

// Returns a line that names the members which neither the family nor transformers knows, or
// nothing. Throws Error if a member asks for maths that the family does not have. REQUIRES: the
// family has read `c` from `f`.
std::string judge_unread(const HfFields& f, const ModelSpec& c) {
  std::vector<std::string> unknown;
  for (const std::string& name : f.unread()) {
    if (name == "layer_types") require_layer_types(f, c);
    TOK_REQUIRE(!asks_for_other_maths(f, name),
                "{}: \"{}\": {} is not supported: {} does not compute with it, so remove it if the "
                "model was trained without",
                f.what(), name, f.text_of(name), c.family->architecture);
    if (name != "layer_types" && name[0] != '_' && !holds(kWithoutEffect, name) &&
        !holds(kOfOtherMaths, name) && !holds(kOfOtherMathsUnlessOne, name))
      unknown.push_back(printable(name));
  }
  if (unknown.empty()) return "";
  const size_t shown = std::min(unknown.size(), kMostShown);
  const std::string more =
      shown < unknown.size() ? fmt::format(" and {} more", unknown.size() - shown) : "";
  unknown.resize(shown);
  return fmt::format("{}: {} does not know \"{}\"{}: ignored, as in transformers", f.what(),
                     c.family->architecture, fmt::join(unknown, "\", \""), more);
}

bool is_same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

// The model type decides if no architecture is named or the named one has no head (LlamaModel). The
// first conversions of Llama say LLaMAForCausalLM.
const Family& family_of(const HfFields& f) {
  const std::string name = f.first_text_or("architectures", "");
  const std::string type = f.text_or("model_type", "");
  std::vector<std::string_view> names;
  for (const Family* family : families()) {
    if (is_same_name(family->architecture, name)) {
      TOK_REQUIRE(type.empty() || type == family->model_type,
                  "{}: \"architectures\" says {}, but \"model_type\" says \"{}\", by which "
                  "transformers goes: make them agree",
                  f.what(), name, type);
      return *family;
    }
    names.push_back(family->architecture);
  }
  for (const Family* family : families()) {
    if (family->model_type == type && (name.empty() || name.ends_with("Model"))) return *family;
  }
  fail("{}: architecture \"{}\" is not supported, only {}, and the text models of {}", f.what(),
       name.empty() ? type : name, fmt::join(names, ", "), fmt::join(models_with_text(), ", "));
}

void put_ids(OrderedJson& json, const SpecialIds& ids) {
  json["bos_token_id"] = ids.bos ? OrderedJson(*ids.bos) : OrderedJson(nullptr);
  json["eos_token_id"] = ids.eos ? OrderedJson(*ids.eos) : OrderedJson(nullptr);
}

}  // namespace

ModelSpec parse_hf_config(std::string_view text, std::string_view what) {
  const Json json = parse_json(text, what);
  TOK_REQUIRE(json.is_object(), "{}: wanted a JSON object", what);
  const HfFields f(json, what);
  if (const auto inside = text_model_config(f, text)) {
    ModelSpec config = parse_hf_config(*inside, what);
    const std::string outside = judge_unread(f, config);
    if (config.unused_members.empty()) config.unused_members = outside;
    return config;
  }
  TOK_REQUIRE(!f.has("quantization_config"),
              "{}: \"quantization_config\" is not supported: save the model in transformers after "
              "dequantize()",
              what);
  TOK_REQUIRE(f.flag_or("is_causal", true), "{}: \"is_causal\": false is not supported, only true",
              what);
  f.must_be("use_bidirectional_attention", false);
  ModelSpec config{
      .family = &family_of(f), .name = "hf", .flavor = "hf", .init = InitRecipe::kHuggingFace};
  config.family->read_config(f, config);
  TOK_REQUIRE(config.num_heads * config.head_dim <= kMostExtent,
              "{}: {} heads of {} make {} outputs, wanted at most {}", what, config.num_heads,
              config.head_dim, config.num_heads * config.head_dim, kMostExtent);
  config.unused_members = judge_unread(f, config);
  config.hf_config = std::string(text);
  return config;
}

std::vector<std::pair<std::string, std::string>> hf_members(const ModelSpec& c) {
  OrderedJson json = c.family->config_json(c);
  for (const char* key : {"initializer_range", "max_position_embeddings"}) json.erase(key);
  // rope_parameters says these once more.
  for (const char* key :
       {"rope_theta", "rope_scaling", "rope_local_base_freq", "original_max_position_embeddings"})
    json.erase(key);
  std::vector<std::pair<std::string, std::string>> members;
  for (const auto& [key, value] : json.items()) members.emplace_back(key, value.dump());
  return members;
}

std::string to_hf_config(const ModelSpec& c, DType dtype, const SpecialIds& ids) {
  const bool is_found = !c.hf_config.empty();
  OrderedJson json =
      is_found ? parse_ordered_json(c.hf_config, "config.json") : OrderedJson::object();
  json.erase("rope_scaling");
  json.update(c.family->config_json(c));
  json["vocab_size"] = c.vocab_size;
  json["tie_word_embeddings"] = c.tied;
  for (const char* key : {"dtype", "torch_dtype"}) json[key] = name_of(dtype);
  if (is_found) {
    // transformers would put its own defaults in place of ids that are absent.
    if (ids.bos && !json.contains("bos_token_id")) json["bos_token_id"] = *ids.bos;
    if (ids.eos && !json.contains("eos_token_id")) json["eos_token_id"] = *ids.eos;
  } else {
    json["use_cache"] = true;
    put_ids(json, ids);
  }
  return json.dump(2) + "\n";
}

std::vector<std::string> limits_of_exports(const ModelSpec& c, int64_t seq_len) {
  std::vector<std::string> lines;
  if (seq_len > c.max_seq_len) {
    lines.push_back(fmt::format(
        "training.seq_len = {}: exports keep max_position_embeddings = {}, from which dynamic RoPE "
        "scales, and servers may cut texts there",
        seq_len, c.max_seq_len));
  }
  const bool needs_multiple = c.family == &kLlama || c.family == &kGemma2 || c.family == &kGemma3;
  if (needs_multiple && c.dim % c.num_heads != 0) {
    lines.push_back(
        fmt::format("transformers 5 will refuse exports: hidden_size = {} (model.dim) is no "
                    "multiple of {} heads "
                    "(model.heads)",
                    c.dim, c.num_heads));
  }
  if (c.attention.window_rope &&
      c.attention.window_rope->scaling.kind != RopeScaling::Kind::kNone) {
    lines.emplace_back(
        "transformers 4 will not read from exports how rope_parameters scale "
        "\"sliding_attention\"");
  }
  return lines;
}

std::vector<int32_t> parse_eos_ids(std::string_view text, std::string_view what) {
  const Json json = parse_json(text, what);
  if (!json.is_object() || !json.contains("eos_token_id") || json["eos_token_id"].is_null())
    return {};
  const Json& found = json["eos_token_id"];
  std::vector<int32_t> ids;
  for (const Json& id : found.is_array() ? found : Json::array({found})) {
    TOK_REQUIRE(id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < kMostVocab,
                "{}: \"eos_token_id\": wanted an id or a list of ids, got {}", what,
                printable(found.dump().substr(0, 60)));
    ids.push_back(id.get<int32_t>());
  }
  return ids;
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
