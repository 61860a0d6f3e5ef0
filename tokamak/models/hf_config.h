// Hugging Face config.json, in and out: both spellings in use are read, and what was read is
// written back as found.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tokamak/core/dtype.h"
#include "tokamak/models/model_spec.h"

namespace tokamak {

/// The model that a config.json describes (LlamaForCausalLM, GPT2LMHeadModel). Throws Error "WHAT:
/// ..." naming any field that is missing, ill-typed, out of range, or changes the maths in a way
/// that is not supported.
ModelSpec parse_hf_config(std::string_view text, std::string_view what);

/// Ids that a tokenizer gives, for export.
struct SpecialIds {
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
};

/// config.json and generation_config.json for an export with weights of `dtype`.
std::string to_hf_config(const ModelSpec& config, DType dtype, const SpecialIds& ids);
std::string to_hf_generation_config(const ModelSpec& config, const SpecialIds& ids);

}  // namespace tokamak
