// Cuts text into words before byte-pair merging. The rules of GPT-2 and Llama 3 are written by hand
// and take time linear in the text; any other pattern goes to PCRE2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tokamak/tokenizer/unicode.h"

namespace tokamak {

/// The patterns of GPT-2, Llama 3 and Qwen 2, which differs from Llama 3 in the longest number.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// Cuts `text` into words by one of the two rules. It is a value that is cheap to make.
class WordSplitter {
 public:
  /// `max_digits` 0 selects GPT-2's rule; otherwise it is the longest number in Llama 3's rule.
  WordSplitter(std::string_view text, int max_digits)
      : begin_(text.data()), end_(text.data() + text.size()), max_digits_(max_digits) {}

  /// Returns the next word, or nothing at the end of the text. The words cover the text.
  std::string_view next() {
    if (begin_ == end_) return {};
    const char* stop = max_digits_ == 0 ? gpt2_end(begin_) : llama3_end(begin_);
    const std::string_view word(begin_, static_cast<size_t>(stop - begin_));
    begin_ = stop;
    return word;
  }

 private:
  struct Char {
    uint8_t flags;
    uint32_t bytes;
  };

  Char at(const char* p) const {
    const auto c = static_cast<uint8_t>(*p);
    if (c < 0x80) return {flags_[c], 1};
    const CodePoint code = decode_utf8(p, end_);
    return {flags_[code.value], code.bytes};
  }

  /// Returns the end of the run of characters whose flags under `mask` are `want`.
  const char* skip(const char* p, uint8_t mask, uint8_t want) const {
    while (p < end_) {
      const Char c = at(p);
      if ((c.flags & mask) != want) break;
      p += c.bytes;
    }
    return p;
  }

  const char* skip_others(const char* p) const { return skip(p, kLetter | kNumber | kSpace, 0); }

  const char* skip_newlines(const char* p) const {
    while (p < end_ && (*p == '\r' || *p == '\n')) ++p;
    return p;
  }

  const char* contraction_end(const char* p, bool any_case) const;
  const char* gpt2_end(const char* p) const;
  const char* llama3_end(const char* p) const;
  const char* space_end(const char* p, bool newline_ends) const;

  const char* begin_;
  const char* end_;
  int max_digits_;
  const uint8_t* flags_ = unicode_flags();
};

/// A compiled pattern that finds matches one after another. It is thread-safe.
class RegexSplitter {
 public:
  /// Throws Error "WHAT: ..." if PCRE2 cannot compile the pattern.
  RegexSplitter(std::string_view pattern, std::string_view what);
  RegexSplitter(RegexSplitter&&) noexcept;
  RegexSplitter& operator=(RegexSplitter&&) noexcept;
  ~RegexSplitter();

  /// The position of a search, which starts at {0, 0}.
  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };

  /// Moves to the next match after `match`; returns false if there is none. An empty match counts
  /// if `takes_empty` and if it lies behind the end of `match`.
  bool next(std::string_view text, Match& match, bool takes_empty = false) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace tokamak
