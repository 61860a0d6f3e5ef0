// Sizes that a user sets one by one, over those of a flavor or of a config.json.
#pragma once

#include <cstdint>
#include <optional>

#include "tokamak/models/model_spec.h"

namespace tokamak {

/// The keys of `model.*` by the same names.
struct OwnSizes {
  std::optional<int64_t> layers, dim, heads, kv_heads, head_dim, mlp_dim, vocab_size, window;

  bool any() const {
    return layers || dim || heads || kv_heads || head_dim || mlp_dim || vocab_size || window;
  }
};

/// Changes `spec`. Sizes that are not set follow: head_dim is dim over heads if either is set,
/// kv_heads stays if it divides the heads, mlp_dim keeps its ratio to dim, in whole multiples
/// of 64. Throws Error naming the key whose value cannot be.
void apply_sizes(const OwnSizes& own, ModelSpec& spec);

}  // namespace tokamak
