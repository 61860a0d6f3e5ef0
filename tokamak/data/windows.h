// Windows of seq_len + 1 tokens over one source, with epochs, tails and shuffling.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>

#include "tokamak/data/token_source.h"

namespace tokamak {

struct WindowOptions {
  /// Tokens per window, which is seq_len + 1.
  int64_t window_size = 0;
  int64_t vocab_size = 0;
  std::optional<uint64_t> shuffle_seed;
  bool infinite = true;
};

/// Window i holds tokens [i * window_size, (i + 1) * window_size) of the endlessly repeated source.
/// Sources that drop their tail, and all shuffled sources, repeat whole windows only.
class Windows {
 public:
  /// Throws Error if a complete source is smaller than a window, or if a shuffle is wanted over an
  /// incomplete one.
  Windows(std::unique_ptr<TokenSource> source, WindowOptions options);

  /// Fills `out`; returns false past the end of a finite stream. Throws Error naming file and place
  /// of an id outside the vocabulary, or Stopped.
  bool read(int64_t window, std::span<int32_t> out, const std::stop_token& stop);

  /// Waits until the source is complete; returns the windows of a finite pass. Throws Stopped.
  int64_t wait_for_count(const std::stop_token& stop);

  /// Returns the pass over the source in which `window` begins, or 0 while the first pass is
  /// incomplete. Any thread may call it.
  int64_t epoch_of(int64_t window) const;

  const TokenSource& source() const { return *source_; }

  /// That of its source. Any thread may call it.
  int64_t progress() const { return source_->progress(); }

 private:
  std::optional<int64_t> first_token(int64_t window, const std::stop_token& stop);
  void check_size(int64_t size) const;
  void check_ids(int64_t first, std::span<const int32_t> ids) const;

  std::unique_ptr<TokenSource> source_;
  WindowOptions options_;
};

}  // namespace tokamak
