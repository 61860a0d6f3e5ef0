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
  Value position;  ///< i32 [1] or [B]: where the new tokens go
  Value length;    ///< i32 [1] or [B]: valid positions including the new ones
  /// i32 [1]: which of the B texts one sequence continues, whose position counts through all of
  /// them: row * capacity + place. Invalid: there are B sequences.
  Value row;
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
  double logit_cap = 0.0;  ///< as LmHeadLoss::cap
};

/// Builds the forward pass. `seed` keys dropout.
ModelOutputs build_model(Graph& graph, Parameters& parameters, const ModelSpec& config,
                         const ModelInputs& inputs, uint64_t seed);

}  // namespace tokamak
