// Streams weights between Hugging Face's tensors and our parameters. Names are the same except
// where the family's WeightLayout says otherwise (GPT-2's c_attn, which we keep in its three
// parts).
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tokamak/checkpoint/tensor_source.h"
#include "tokamak/models/hf_config.h"

namespace tokamak {

/// Returns our parameters from tensors with Hugging Face names and layouts. Ignores other tensors.
std::vector<TensorSource> parameters_from_hf(const ModelSpec& config,
                                             std::span<const TensorSource> tensors);

/// Returns the tensors that save_pretrained would write, from our parameters (a tied head is not
/// among them).
std::vector<TensorSource> parameters_to_hf(const ModelSpec& config,
                                           std::span<const TensorSource> parameters);

/// Returns the parameters found at `path`: a Hugging Face folder or safetensors file (also with
/// Meta's names), or a Tokamak checkpoint. The sources keep their files open.
/// Throws Error; pickles are refused with the remedy.
std::vector<TensorSource> open_weights(const ModelSpec& config, const std::filesystem::path& path);

/// Returns a line about what the config.json of these weights says in another way than `model`, as
/// "rms_norm_eps 1e-06 (now 1e-05)"; nothing if there is none. Throws Error.
std::string other_members(const ModelSpec& model, const std::filesystem::path& weights);

/// Files that lie beside weights (tokenizer.json, ...): contents by name.
using AssetFiles = std::map<std::string, std::string>;

/// Returns the tokenizer files found in `folder`.
AssetFiles tokenizer_files_in(const std::filesystem::path& folder);

/// Returns generation_config.json of a Hugging Face folder, if there is one; exports keep it as is.
AssetFiles generation_config_in(const std::filesystem::path& folder);

/// Returns the path at which an export or a checkpoint replaces what was there: links are followed.
/// Throws Error unless nothing is there, or a folder that holds nothing but files of an export and
/// `also`.
std::filesystem::path replaceable_folder(const std::filesystem::path& folder,
                                         const std::string& also);

/// Writes a folder that transformers loads: config.json, generation_config.json, `assets`, and the
/// weights as `dtype`. The folder is complete or does not exist; one that exists is replaced with
/// all in it.
void export_hf_folder(const std::filesystem::path& folder, const ModelSpec& config,
                      std::span<const TensorSource> parameters, DType dtype, const SpecialIds& ids,
                      const AssetFiles& assets);

}  // namespace tokamak
