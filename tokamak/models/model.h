// A model's forward graph over global shapes. It knows no device, no parallelism, and no precision
// except that of the parameters.
#pragma once

#include <optional>
#include <vector>

#include "tokamak/models/model_spec.h"
#include "tokamak/models/parameters.h"

namespace tokamak {

/// Generation keeps the keys and values of all earlier positions in one pair of State per layer.
struct KvCache {
  std::vector<StateId> keys;  ///< [B, capacity, kv_heads, head_dim]
  std::vector<StateId> values;
  Value position;  ///< i32 [1]: where the new tokens go
  Value length;    ///< i32 [1]: valid positions including the new ones
};

struct ModelInputs {
  Value tokens;     ///< i32 [B, S]
  Value positions;  ///< i32 [B, S]
  Value rows;  ///< i64 [B]: each sequence's index in the run, keys dropout; invalid = no dropout
  const KvCache* cache = nullptr;
};

/// The head's operands: hidden states after the last norm [B, S, D] and its weight [V, D].
struct ModelOutputs {
  Value hidden;
  Value head;
};

/// Builds the forward pass. `seed` keys dropout.
ModelOutputs build_model(Graph& graph, Parameters& parameters, const ModelSpec& config,
                         const ModelInputs& inputs, uint64_t seed);

}  // namespace tokamak
