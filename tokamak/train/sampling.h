// The choice of the next token from logits.
#pragma once

#include <cstdint>
#include <span>

namespace tokamak {

struct SamplingOptions {
  int64_t max_new_tokens = 100;
  double temperature = 1.0;  ///< 0 = the most likely token
  int64_t top_k = 0;         ///< only the k most likely tokens; 0 = all
  double top_p = 1.0;        ///< of these, the fewest whose probabilities sum to at least this
  uint64_t seed = 0;
};

/// Returns the next token from logits: a pure function of (logits, options, index of the token).
int32_t sample(std::span<const float> logits, const SamplingOptions& options, int64_t index);

}  // namespace tokamak
