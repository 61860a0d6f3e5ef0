// Measures a model's loss on a text, on any mesh, without anything that only training needs.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <span>

#include "tokamak/checkpoint/tensor_source.h"
#include "tokamak/comm/communicator.h"
#include "tokamak/data/scored_rows.h"
#include "tokamak/exec/backend.h"
#include "tokamak/run/planned_run.h"

namespace tokamak {

struct Evaluation {
  double nats = 0.0;  ///< sum of -ln p over the predicted tokens
  TextCounts counts;
  double seconds = 0.0;

  /// Returns the mean of -ln p per predicted token.
  double loss() const { return nats / static_cast<double>(counts.tokens); }

  double perplexity() const { return std::exp(loss()); }

  double bits_per_byte() const { return nats / std::log(2.0) / static_cast<double>(counts.bytes); }
};

struct EvaluationOptions {
  ModelSpec model;
  RunShape shape;  ///< does not train; its validation says how many rows a rank takes at once
  TextSource text;
  const Tokenizer* tokenizer = nullptr;
  std::string token_files;  ///< a path as open_token_files() takes it; then there is no text
  ScoringOptions scoring;
  int64_t ranks_per_host = 1;
  /// Called on rank 0 after each batch with what is done so far; may be absent.
  std::function<void(const Evaluation&)> progress;
};

/// Returns the measurement, the same on all ranks. Throws alike on all ranks; an Error where the
/// text has no token to predict, or the device too little memory. Collective.
Evaluation evaluate(const EvaluationOptions& options, std::span<const TensorSource> parameters,
                    World& world, Backend& backend);

}  // namespace tokamak
