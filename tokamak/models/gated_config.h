// What the config.json of every family with a gated decoder says alike.
#pragma once

#include <string_view>

#include "tokamak/core/json.h"
#include "tokamak/models/hf_fields.h"
#include "tokamak/models/model_spec.h"

namespace tokamak {

/// What transformers assumes of members that a config.json leaves out, where families differ.
struct GatedDefaults {
  int64_t kv_heads = 0;  ///< 0: as many as query heads
  int64_t head_dim = 0;  ///< 0: hidden_size over heads
  int64_t max_positions = 0;
};

/// Reads sizes, norms, positions and dropout; throws Error on maths that the builder does not
/// support.
void read_gated_config(const HfFields& f, ModelSpec& c, const GatedDefaults& defaults);

/// The members of config.json that all these families have.
OrderedJson gated_config_json(const ModelSpec& c, std::string_view architecture,
                              std::string_view model_type);

}  // namespace tokamak
