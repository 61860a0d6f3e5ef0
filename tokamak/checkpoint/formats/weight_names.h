// Names of weights. Internally, weights have the names and layouts of Hugging Face's models. The
// Llama names of Meta and torchtitan and bare GPT-2 names are translated to them on import.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/checkpoint/tensor_source.h"

namespace tokamak {

struct HeadCounts {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
};

/// Translates "layers.3.attention.wq.weight" to "model.layers.3.self_attn.q_proj.weight"; returns
/// nothing for a name that is not Meta's.
std::optional<std::string> hf_name_of_meta(std::string_view name);

/// Translates "model.layers.3.self_attn.q_proj.weight" to "layers.3.attention.wq.weight", which is
/// torchtitan's name of that weight; returns "" for a name that no Llama has.
std::string meta_name_of_hf(std::string_view name);

/// Whether the tensors are named as in Meta's consolidated files and torchtitan.
bool has_meta_names(std::span<const TensorSource> tensors);

/// Whether a tensor belongs to the parts for images of a model for images and text, which no model
/// of ours has.
bool is_for_images(std::string_view name);

/// Brings tensors of any known naming to Hugging Face's. Meta's tensors are renamed and the rows of
/// wq and wk permuted, names of a model without a head get its prefix ("model.", "transformer."),
/// those of the text model in a model for images and text lose "language_model.", buffers (masks,
/// rotary frequencies) are dropped, and other names stay. `heads` is used only for Meta's tensors.
/// Throws Error if a set of Meta's names has one that no Llama has.
std::vector<TensorSource> to_hf_weights(std::span<const TensorSource> tensors,
                                        const HeadCounts& heads);

}  // namespace tokamak
