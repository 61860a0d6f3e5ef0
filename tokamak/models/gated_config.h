// The members of config.json that all families with a gated decoder share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/json.h"
#include "tokamak/models/hf_fields.h"
#include "tokamak/models/model_spec.h"

namespace tokamak {

/// What transformers assumes of members that a config.json leaves out, where families differ.
struct GatedDefaults {
  int64_t kv_heads = 0;  ///< 0: one for each query head
  int64_t head_dim = 0;  ///< 0: hidden_size over heads
  int64_t max_positions = 0;
  bool tied = false;
  GateKind gate = GateKind::kSilu;  ///< other gates are read by the family
};

/// Reads all but rotary positions (rope_config.h) and windows; throws Error on maths that the
/// builder does not support.
void read_gated_config(const HfFields& f, ModelSpec& c, const GatedDefaults& defaults);

/// The window that transformers assumes when config.json has no "sliding_window".
inline constexpr int64_t kDefaultWindow = 4096;

inline constexpr std::string_view kSlidingLayer = "sliding_attention";
inline constexpr std::string_view kFullLayer = "full_attention";

/// Returns which blocks have a window as "layer_types" says; throws Error unless it names one of
/// the above for each block.
std::vector<bool> read_layer_types(const HfFields& f, const ModelSpec& c);

/// Returns "layer_types".
OrderedJson layer_types_json(const ModelSpec& c);

/// Returns the widest window of all blocks, or null: "sliding_window".
OrderedJson sliding_window_json(const ModelSpec& c);

/// The members of config.json that all these families have.
OrderedJson gated_config_json(const ModelSpec& c, std::string_view architecture,
                              std::string_view model_type);

}  // namespace tokamak
