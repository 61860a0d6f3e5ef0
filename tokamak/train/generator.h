// Text generation with a KV cache: the same model code, compiled for one new token and for a chunk
// of a prompt.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tokamak/checkpoint/tensor_source.h"
#include "tokamak/exec/backend.h"
#include "tokamak/models/model.h"

namespace tokamak {

struct SamplingOptions {
  int64_t max_new_tokens = 100;
  double temperature = 1.0;  ///< 0 = the most likely token
  int64_t top_k = 0;         ///< 0 = all
  uint64_t seed = 0;
};

/// Returns the next token from logits: a pure function of (logits, options, index of the token).
int32_t sample(std::span<const float> logits, const SamplingOptions& options, int64_t index);

/// A model ready to continue texts of up to `capacity` tokens.
class Generator {
 public:
  /// Throws Error if `parameters` do not fit the model or `capacity` exceeds its learned positions.
  Generator(const ModelSpec& config, std::span<const TensorSource> parameters, DType compute,
            int64_t capacity, Backend& backend);
  ~Generator();

  /// Returns the logits after all of `tokens`, which begin a new text or, with `from` > 0, continue
  /// at that position.
  std::vector<float> logits_after(std::span<const int32_t> tokens, int64_t from = 0);

  /// Samples up to options.max_new_tokens, passing each to `emit` as it is made; ends early at
  /// `eos` or at capacity.
  void generate(std::span<const int32_t> prompt, const SamplingOptions& options,
                std::optional<int32_t> eos, const std::function<void(int32_t)>& emit);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tokamak
