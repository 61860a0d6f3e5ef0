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

/// A text to continue.
struct Prompt {
  std::vector<int32_t> tokens;
  SamplingOptions sampling;
};

/// Why a text ended: at the model's end of a text, because it has all the tokens it may have, or
/// because the caller stopped it.
enum class TextEnd : uint8_t { kEos, kLength, kStopped };

/// What generate() calls as texts grow; `text` is the index of a prompt.
struct TextEvents {
  std::function<bool(size_t text, int32_t id)> token;  ///< false: the text ends here
  std::function<void(size_t text, TextEnd why)> end = [](size_t, TextEnd) {};
};

/// Tokens and seconds of one generate(). The first new token of a text comes with its prompt.
struct GenerationTimes {
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;  ///< after the first ones
  int64_t steps = 0;       ///< that made them
  double prompt_s = 0.0;
  double new_s = 0.0;
};

/// A model ready to continue texts of up to `capacity` tokens, `batch` of them at a time. Each text
/// has a row of the cache to itself, its prompt is read alone, and then all rows make a token at
/// once, so texts of any lengths go together and none depends on the others.
class Generator {
 public:
  /// Weights and cache are kept in `compute`. Throws Error if `parameters` do not fit the model,
  /// the device has too little memory or `capacity` exceeds the learned positions.
  Generator(const ModelSpec& config, std::span<const TensorSource> parameters, DType compute,
            int64_t capacity, Backend& backend, int64_t batch = 1);
  ~Generator();

  /// Returns the logits after all of `tokens`, which begin a new text or, with `from` > 0, continue
  /// at that position. REQUIRES: a batch of 1 where `from` > 0.
  std::vector<float> logits_after(std::span<const int32_t> tokens, int64_t from = 0);

  /// Continues all prompts; where a text ends, the next prompt takes its row. A text ends after
  /// sampling.max_new_tokens, at an id of `eos`, which is no token of it, or at capacity.
  GenerationTimes generate(std::span<const Prompt> prompts, std::span<const int32_t> eos,
                           const TextEvents& events);

  /// Returns the bytes that a token of each text, after `length` others, reads: weights and cache.
  int64_t bytes_per_step(int64_t length) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tokamak
