// Times the making of one token after another by a model of random weights.
#pragma once

#include <cstdint>

#include "tokamak/core/dtype.h"
#include "tokamak/exec/backend.h"
#include "tokamak/models/model_spec.h"

namespace tokamak {

struct DecodeBenchmark {
  double seconds = 0.0;         ///< of one token of each text, median, with the host's work
  double prompt_seconds = 0.0;  ///< of the tokens before them
  int64_t bytes = 0;            ///< that this reads: weights and cache
};

/// Makes `tokens` tokens after prompts of `length`, for `batch` texts at once. Weights and cache
/// are `dtype`. Throws Error where they do not fit the device.
DecodeBenchmark benchmark_decode(const ModelSpec& model, DType dtype, int64_t length,
                                 int64_t tokens, int64_t batch, Backend& backend);

}  // namespace tokamak
