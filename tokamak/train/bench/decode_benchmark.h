// Times the making of tokens one by one by a model of random weights.
#pragma once

#include <cstdint>

#include "tokamak/core/dtype.h"
#include "tokamak/exec/backend.h"
#include "tokamak/models/model_spec.h"

namespace tokamak {

struct DecodeBenchmark {
  double seconds = 0.0;         ///< of one token, median, with what the host does for it
  double prompt_seconds = 0.0;  ///< of the tokens before it
  int64_t bytes = 0;            ///< that a token reads: weights and cache
};

/// Makes `tokens` tokens after a prompt of `length`. Weights and cache are `dtype`. Throws Error
/// where they do not fit the device.
DecodeBenchmark benchmark_decode(const ModelSpec& model, DType dtype, int64_t length,
                                 int64_t tokens, Backend& backend);

}  // namespace tokamak
