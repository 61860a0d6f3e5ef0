// Names of weights. Inside, weights have the names and layouts of Hugging Face's models; Meta's and
// torchtitan's Llama and bare GPT-2 names are brought to them on the way in.
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

/// "layers.3.attention.wq.weight" to "model.layers.3.self_attn.q_proj.weight"; nothing for a name
/// that is not Meta's.
std::optional<std::string> hf_name_of_meta(std::string_view name);

/// Translates "model.layers.3.self_attn.q_proj.weight" to "layers.3.attention.wq.weight", which is
/// torchtitan's name of that weight; returns "" for a name that is not of a Llama's layer.
std::string meta_name_in_layer(std::string_view name);

/// Whether the tensors are named as in Meta's consolidated files and torchtitan.
bool has_meta_names(std::span<const TensorSource> tensors);

/// Brings tensors of any known naming to Hugging Face's: Meta's are renamed and the rows of wq and
/// wk permuted, bare GPT-2 names get "transformer.", buffers (masks, rotary frequencies) are
/// dropped, other names stay. `heads` is used only for Meta's. Throws Error on a Meta-named set
/// with a name of no Llama.
std::vector<TensorSource> to_hf_weights(std::span<const TensorSource> tensors,
                                        const HeadCounts& heads);

}  // namespace tokamak
