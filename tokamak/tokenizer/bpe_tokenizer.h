// The tokenizer behind both file formats: added tokens, word rules, then byte-pair merging.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokamak/tokenizer/added_tokens.h"
#include "tokamak/tokenizer/bpe.h"
#include "tokamak/tokenizer/split.h"
#include "tokamak/tokenizer/tokenizer.h"

namespace tokamak {

/// One of the two known rules; max_digits as WordSplitter's.
struct KnownRule {
  int max_digits = 0;
};

/// Matches of a pattern and what lies between them are words, where kept.
struct PatternRule {
  RegexSplitter splitter;
  bool keep_matches = true;
  bool keep_gaps = true;
};

/// Runs of numbers, or each number character, are words.
struct DigitsRule {
  bool individual = false;
};

/// Puts a space before words that lack one.
struct PrefixSpaceRule {};

/// Rules are applied one after another, each to the words of the one before.
using WordRule = std::variant<KnownRule, PatternRule, DigitsRule, PrefixSpaceRule>;

/// What a file says.
struct BpeDefinition {
  Bpe bpe;
  std::vector<AddedToken> added_tokens;
  std::vector<WordRule> rules;
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  uint64_t hash = 0;
  std::string name;
};

/// REQUIRES: ids of added tokens are in the vocabulary.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeDefinition definition);

}  // namespace tokamak
