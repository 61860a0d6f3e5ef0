// The tokenizer for all file formats finds added tokens, normalizes what is between them, applies
// word rules, then merges pairs.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokamak/tokenizer/added_tokens.h"
#include "tokamak/tokenizer/bpe.h"
#include "tokamak/tokenizer/normalizer.h"
#include "tokamak/tokenizer/split.h"
#include "tokamak/tokenizer/token_decoder.h"
#include "tokamak/tokenizer/tokenizer.h"

namespace tokamak {

/// One of the two known rules; max_digits is as in WordSplitter.
struct KnownRule {
  int max_digits = 0;
};

/// What becomes of a pattern's matches: words, nothing, a part of the word before or after, or one
/// word for all that touch.
enum class MatchedParts : uint8_t { kIsolated, kRemoved, kWithPrevious, kWithNext, kContiguous };

/// A pattern's matches and the gaps between them are words; `inverted` swaps the two.
struct PatternRule {
  RegexSplitter splitter;
  MatchedParts matches = MatchedParts::kIsolated;
  bool inverted = false;
};

/// Runs of numbers, or each number character, are words.
struct DigitsRule {
  bool individual = false;
};

/// Puts a space before words that lack one.
struct PrefixSpaceRule {};

/// Spells the text in the byte-level alphabet for the rules that follow.
struct SpelledBytesRule {};

/// Replaces spaces by `replacement`, puts one before words that lack it, and cuts before each.
struct MetaspaceRule {
  enum class Prepend : uint8_t { kAlways, kFirst, kNever };

  std::string replacement;
  Prepend prepend = Prepend::kAlways;  ///< kFirst: before the word that begins the text
  bool splits = true;
};

/// Rules are applied one after another, each to the words of the one before.
using WordRule = std::variant<KnownRule, PatternRule, DigitsRule, PrefixSpaceRule, SpelledBytesRule,
                              MetaspaceRule>;

/// The contents of a tokenizer file.
struct BpeDefinition {
  Bpe bpe;
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  std::vector<WordRule> rules;
  /// How the texts of tokens are joined; absent: as they are.
  std::optional<std::vector<DecoderStep>> decoder;
  /// The texts of tokens that are not as the vocabulary has them: Hugging Face decodes an added
  /// token as its normalized text.
  std::map<int32_t, std::string> decoded;
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  uint64_t hash = 0;
  std::string name;
};

/// REQUIRES: the ids of added tokens are in the vocabulary.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeDefinition definition);

}  // namespace tokamak
