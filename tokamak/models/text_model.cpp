#include "tokamak/models/text_model.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/models/family.h"
#include "tokamak/models/hf_fields.h"

namespace tokamak {
namespace {

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
  for (const Family* family : kFamilies) {
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

}  // namespace

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

std::vector<std::string_view> models_with_text() {
  std::vector<std::string_view> names;
  names.reserve(kModelsWithText.size());
  for (const ModelWithText& model : kModelsWithText) names.push_back(model.architecture);
  return names;
}

}  // namespace tokamak
