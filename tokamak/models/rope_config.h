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

/// Does the same where blocks with a window rotate in another way: reads `rope_parameters` of
/// "full_attention" and "sliding_attention", or `rope_local_base_freq` along with the older
/// members. `full_theta` and `window_theta` stand for those that are absent.
void read_rope_by_layer(const HfFields& f, ModelSpec& c, double full_theta, double window_theta);

/// Writes how a model rotates in both spellings, so that every reader finds its own.
void write_rope(const ModelSpec& c, OrderedJson& json);

}  // namespace tokamak
