// Rotary positions in config.json: `rope_parameters`, or `rope_theta` with `rope_scaling` before
// transformers 5.
#pragma once

#include "tokamak/core/json.h"
#include "tokamak/models/hf_fields.h"
#include "tokamak/models/model_spec.h"

namespace tokamak {

/// Reads rope_theta and rope_scaling; throws Error on a type that is not supported or on factors
/// that are missing. REQUIRES: head_dim and max_seq_len are set.
void read_rope(const HfFields& f, ModelSpec& c);

/// Returns `rope_parameters`.
OrderedJson rope_json(const ModelSpec& c);

}  // namespace tokamak
