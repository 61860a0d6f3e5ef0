#include "tokamak/models/hf_config.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/core/names.h"
#include "tokamak/models/family.h"
#include "tokamak/models/hf_fields.h"
#include "tokamak/models/text_model.h"
#include "tokamak/models/unread_members.h"

namespace tokamak {
namespace {

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
  for (const Family* family : kFamilies) {
    if (is_same_name(family->architecture, name)) {
      TOK_REQUIRE(type.empty() || type == family->model_type,
                  "{}: \"architectures\" says {}, but \"model_type\" says \"{}\", by which "
                  "transformers goes: make them agree",
                  f.what(), name, type);
      return *family;
    }
    names.push_back(family->architecture);
  }
  for (const Family* family : kFamilies) {
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
