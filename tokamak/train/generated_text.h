// From generated ids to text as it is made: pieces that will not change, up to a stop string.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokamak/tokenizer/tokenizer.h"

namespace tokamak {

class GeneratedText {
 public:
  /// `prompt` may decide how the first new token reads: a decoder may drop a text's first space.
  /// The text ends before the first of `stops`. `tokenizer` must outlive it.
  GeneratedText(const Tokenizer& tokenizer, std::vector<int32_t> prompt,
                std::vector<std::string> stops);

  /// Adds a token and returns the text that is certain now; what may begin a stop string is held
  /// back. Ids beyond the tokenizer's vocabulary have no text.
  std::string add(int32_t id);

  /// Whether a stop string was met: no more text follows.
  bool is_stopped() const { return is_stopped_; }

  /// Returns what was held back, after the last token.
  std::string rest();

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::string> stops_;
  std::vector<int32_t> ids_;  ///< the last ones, which decide how the next one reads
  size_t decoded_ = 0;        ///< bytes of their text
  std::string held_;
  bool is_stopped_ = false;
};

}  // namespace tokamak
