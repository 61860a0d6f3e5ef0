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
#include "tokamak/train/sampling.h"

namespace tokamak {

/// A model ready to continue texts of up to `capacity` tokens.
class Generator {
 public:
  /// Weights and cache are kept in `compute`. Throws Error if `parameters` do not fit the model,
  /// the device has too little memory or `capacity` exceeds the learned positions.
  Generator(const ModelSpec& config, std::span<const TensorSource> parameters, DType compute,
            int64_t capacity, Backend& backend);
  ~Generator();

  /// Returns the logits after all of `tokens`, which begin a new text or, with `from` > 0, continue
  /// at that position.
  std::vector<float> logits_after(std::span<const int32_t> tokens, int64_t from = 0);

  /// Samples up to options.max_new_tokens, passing each to `emit` as it is made; ends early at
  /// `eos`, at capacity, or where `emit` returns false.
  void generate(std::span<const int32_t> prompt, const SamplingOptions& options,
                std::optional<int32_t> eos, const std::function<bool(int32_t)>& emit);

  /// Returns the bytes that a step of one token after `length` others reads: weights and cache.
  int64_t bytes_per_token(int64_t length) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tokamak
