#include "tokamak/checkpoint/formats/weight_names.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tokamak/checkpoint/formats/outside_name.h"
#include "tokamak/checkpoint/transform.h"
#include "tokamak/core/error.h"

namespace tokamak {
namespace {

struct NamePair {
  std::string_view meta;
  std::string_view hf;
};

constexpr std::array kModelNames{
    NamePair{"tok_embeddings.weight", "model.embed_tokens.weight"},
    NamePair{"norm.weight", "model.norm.weight"},
    NamePair{"output.weight", "lm_head.weight"},
};

constexpr std::array kLayerNames{
    NamePair{"attention.wq.weight", "self_attn.q_proj.weight"},
    NamePair{"attention.wk.weight", "self_attn.k_proj.weight"},
    NamePair{"attention.wv.weight", "self_attn.v_proj.weight"},
    NamePair{"attention.wo.weight", "self_attn.o_proj.weight"},
    NamePair{"feed_forward.w1.weight", "mlp.gate_proj.weight"},
    NamePair{"feed_forward.w2.weight", "mlp.down_proj.weight"},
    NamePair{"feed_forward.w3.weight", "mlp.up_proj.weight"},
    NamePair{"attention_norm.weight", "input_layernorm.weight"},
    NamePair{"ffn_norm.weight", "post_attention_layernorm.weight"},
};

bool is_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with("rotary_emb.inv_freq") || name == "rope.freqs" || name == "freqs_cis";
}

// Files of a model without its head have names without the prefix of the model inside. A name
// alone does not tell: Meta's also begin with "layers.".
std::string_view missing_prefix(std::span<const TensorSource> tensors) {
  for (const TensorSource& tensor : tensors) {
    if (tensor.name == "wte.weight") return "transformer.";
    if (tensor.name == "embed_tokens.weight") return "model.";
  }
  return "";
}

// The prefixes of the text model in a model for images and text, and what they are in the text
// model alone. The first match holds.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kTextPrefixes{
    {{"language_model.model.", "model."},
     {"language_model.lm_head.", "lm_head."},
     {"language_model.", "model."},
     {"model.language_model.", "model."}}};

std::string name_in_text_model(const std::string& name) {
  for (const auto& [prefix, alone] : kTextPrefixes) {
    if (name.starts_with(prefix)) return std::string(alone) + name.substr(prefix.size());
  }
  return name;
}

std::string prefixed(std::string_view prefix, const std::string& name) {
  const bool has_own = name.starts_with(prefix) || name.starts_with("lm_head.");
  return has_own ? name : std::string(prefix) + name;
}

int64_t heads_in(std::string_view hf_name, const HeadCounts& heads) {
  if (hf_name.ends_with("q_proj.weight")) return heads.num_heads;
  if (hf_name.ends_with("k_proj.weight")) return heads.num_kv_heads;
  return 0;
}

}  // namespace

std::optional<std::string> hf_name_of_meta(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  for (const NamePair& pair : kModelNames) {
    if (pair.meta == name) return std::string(pair.hf);
  }
  if (!name.starts_with(kLayers)) return std::nullopt;
  const std::string_view rest = name.substr(kLayers.size());
  const size_t dot = rest.find('.');
  const std::string_view index = rest.substr(0, dot);
  const bool is_index = dot != std::string_view::npos && !index.empty() &&
                        index.find_first_not_of("0123456789") == std::string_view::npos;
  if (!is_index) return std::nullopt;
  for (const NamePair& pair : kLayerNames) {
    if (pair.meta == rest.substr(dot + 1)) return fmt::format("model.layers.{}.{}", index, pair.hf);
  }
  return std::nullopt;
}

std::string meta_name_of_hf(std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  for (const NamePair& pair : kModelNames) {
    if (pair.hf == name) return std::string(pair.meta);
  }
  if (!name.starts_with(kLayers)) return {};
  for (const NamePair& pair : kLayerNames) {
    if (!name.ends_with(pair.hf)) continue;
    name.remove_prefix(kLayers.size());
    name.remove_suffix(pair.hf.size());
    return fmt::format("layers.{}{}", name, pair.meta);
  }
  return {};
}

bool is_for_images(std::string_view name) {
  constexpr std::string_view kModel = "model.";
  if (name.starts_with(kModel)) name.remove_prefix(kModel.size());
  return name.starts_with("vision_tower.") || name.starts_with("multi_modal_projector.");
}

bool has_meta_names(std::span<const TensorSource> tensors) {
  if (!missing_prefix(tensors).empty()) return false;
  return std::ranges::any_of(
      tensors, [](const TensorSource& tensor) { return hf_name_of_meta(tensor.name).has_value(); });
}

std::vector<TensorSource> to_hf_weights(std::span<const TensorSource> tensors,
                                        const HeadCounts& heads) {
  const bool is_meta = has_meta_names(tensors);
  const std::string_view prefix = missing_prefix(tensors);
  std::vector<TensorSource> out;
  for (const TensorSource& tensor : tensors) {
    if (is_buffer(tensor.name)) continue;
    if (!is_meta) {
      const std::string name = name_in_text_model(tensor.name);
      out.push_back(renamed(tensor, is_for_images(name) ? name : prefixed(prefix, name)));
      continue;
    }
    const auto name = hf_name_of_meta(tensor.name);
    TOK_REQUIRE(name.has_value(), "{} is not a tensor name of Meta's Llama checkpoints",
                shown(tensor.name));
    const int64_t count = heads_in(*name, heads);
    out.push_back(renamed(count > 0 ? neighbours_to_halves(tensor, count) : tensor, *name));
  }
  return out;
}

}  // namespace tokamak
