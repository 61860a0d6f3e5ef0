// Reads and writes Hugging Face's config.json. Both spellings in use are read, and what was read is
// written back as found.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokamak/core/dtype.h"
#include "tokamak/models/model_spec.h"

namespace tokamak {

/// Returns the model that a config.json describes (of a family in family.h). Throws Error
/// "WHAT: ..." naming any field that is missing, ill-typed, out of range, or changes the maths in
/// an unsupported way.
ModelSpec parse_hf_config(std::string_view text, std::string_view what);

/// Returns what a config.json says of the model, as {"rope_theta", "500000.0"}: its names, sizes
/// and maths, but not how new weights are drawn.
std::vector<std::pair<std::string, std::string>> hf_members(const ModelSpec& config);

/// A tokenizer's special ids, for export.
struct SpecialIds {
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
};

/// Return config.json and generation_config.json for an export with weights of `dtype`. Ids that a
/// config.json was found with stay.
std::string to_hf_config(const ModelSpec& config, DType dtype, const SpecialIds& ids);
std::string to_hf_generation_config(const ModelSpec& config, const SpecialIds& ids);

/// Returns a line for each thing that config.json cannot tell every version of transformers of a
/// model trained on sequences of `seq_len`.
std::vector<std::string> limits_of_exports(const ModelSpec& config, int64_t seq_len);

/// Returns "eos_token_id" of a config.json or generation_config.json, which is an id or a list of
/// them; nothing if there is none. Throws Error that begins with `what`.
std::vector<int32_t> parse_eos_ids(std::string_view text, std::string_view what);

}  // namespace tokamak
