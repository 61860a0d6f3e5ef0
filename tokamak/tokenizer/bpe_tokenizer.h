// The tokenizer for both file formats finds added tokens, applies word rules, then merges pairs.
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

/// One of the two known rules; max_digits is that of WordSplitter.
struct KnownRule {
  int max_digits = 0;
};

/// The kept ones of a pattern's matches and of the gaps between them are words.
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

/// The contents of a tokenizer file.
struct BpeDefinition {
  Bpe bpe;
  std::vector<AddedToken> added_tokens;
  std::vector<WordRule> rules;
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  uint64_t hash = 0;
  std::string name;
};

/// REQUIRES: the ids of added tokens are in the vocabulary.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeDefinition definition);

}  // namespace tokamak
