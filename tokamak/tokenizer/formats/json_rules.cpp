#include "tokamak/tokenizer/formats/json_rules.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <utility>

#include "tokamak/tokenizer/oniguruma.h"

namespace tokamak {
namespace {

// Calls `f` for each element of the list that a Sequence has under `key`.
template <class F>
void for_each_of(const JsonNode& node, std::string_view key, F&& f) {
  const JsonNode list = node.at(key);
  size_t index = 0;
  for (const auto entry : list.array()) f(list.element(entry, index++));
}

std::optional<UnicodeForm> form_of(std::string_view type) {
  if (type == "NFC") return UnicodeForm::kNfc;
  if (type == "NFD") return UnicodeForm::kNfd;
  if (type == "NFKC") return UnicodeForm::kNfkc;
  if (type == "NFKD") return UnicodeForm::kNfkd;
  return std::nullopt;
}

int known_max_digits(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return 0;
  if (pattern == kLlama3Pattern) return 3;
  return pattern == kQwen2Pattern ? 1 : -1;
}

std::string quoted(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x80 && std::isalnum(byte) == 0) out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

// Returns the regular expression of a pattern {"Regex": ..} or {"String": ..}.
std::string regex_of(const JsonNode& pattern) {
  if (const auto regex = pattern.find("Regex")) return std::string(regex->text());
  return quoted(pattern.at("String").text());
}

MatchedParts matches_of(const JsonNode& node, std::string_view behavior) {
  constexpr std::array<std::pair<std::string_view, MatchedParts>, 5> kBehaviors{
      {{"Isolated", MatchedParts::kIsolated},
       {"Removed", MatchedParts::kRemoved},
       {"MergedWithPrevious", MatchedParts::kWithPrevious},
       {"MergedWithNext", MatchedParts::kWithNext},
       {"Contiguous", MatchedParts::kContiguous}}};
  for (const auto& [name, matches] : kBehaviors) {
    if (name == behavior) return matches;
  }
  fail(
      "{}.behavior: wanted Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous, "
      "got {}",
      node.where(), behavior);
}

WordRule read_split(const JsonNode& node) {
  const JsonNode pattern = node.at("pattern");
  const MatchedParts matches = matches_of(node, node.text_or("behavior", "Isolated"));
  const bool inverted = node.boolean_or("invert", false);
  const auto regex = pattern.find("Regex");
  const int max_digits = regex ? known_max_digits(regex->text()) : -1;
  // Matches of the known patterns cover the text.
  const bool keeps_all =
      matches == MatchedParts::kIsolated || (matches == MatchedParts::kRemoved && inverted);
  if (max_digits >= 0 && keeps_all) return KnownRule{.max_digits = max_digits};
  return PatternRule{.splitter = RegexSplitter(regex_of(pattern), pattern.where()),
                     .matches = matches,
                     .inverted = inverted};
}

constexpr std::string_view kJoiners = R"(\x{200C}\x{200D})";  // which Rust's \w has, too
constexpr std::string_view kPunctuation = R"([!-\/:-@\[-`{-~\p{P}])";

PatternRule pattern_rule(std::string_view pattern, const JsonNode& node, MatchedParts matches,
                         bool inverted = false) {
  return {
      .splitter = RegexSplitter(pattern, node.where()), .matches = matches, .inverted = inverted};
}

// Reads a pre-tokenizer that has its pattern in its name; returns false if it is none.
bool read_named_split(std::string_view type, const JsonNode& node, std::vector<WordRule>& rules) {
  if (type == "Whitespace") {
    const std::string words = fmt::format(R"([{0}{1}]+|[^{0}{1}\s]+)", kWordCharacters, kJoiners);
    rules.emplace_back(pattern_rule(words, node, MatchedParts::kRemoved, true));
  } else if (type == "WhitespaceSplit") {
    rules.emplace_back(pattern_rule("\\s+", node, MatchedParts::kRemoved));
  } else if (type == "BertPreTokenizer") {
    rules.emplace_back(pattern_rule("\\s+", node, MatchedParts::kRemoved));
    rules.emplace_back(pattern_rule(kPunctuation, node, MatchedParts::kIsolated));
  } else if (type == "Punctuation") {
    const MatchedParts matches = matches_of(node, node.text_or("behavior", "Isolated"));
    rules.emplace_back(pattern_rule(kPunctuation, node, matches));
  } else if (type == "CharDelimiterSplit") {
    const std::string delimiter = quoted(node.at("delimiter").text());
    rules.emplace_back(pattern_rule(delimiter, node, MatchedParts::kRemoved));
  } else {
    return false;
  }
  return true;
}

// Files of before tokenizers 0.15 say `add_prefix_space` instead of `prepend_scheme`.
std::string_view prepend_scheme(const JsonNode& node) {
  const bool adds = node.boolean_or("add_prefix_space", true);
  return node.text_or("prepend_scheme", adds ? "always" : "never");
}

bool has_metaspace(std::span<const WordRule> rules) {
  return std::ranges::any_of(
      rules, [](const WordRule& rule) { return std::holds_alternative<MetaspaceRule>(rule); });
}

WordRule read_metaspace(const JsonNode& node) {
  using Prepend = MetaspaceRule::Prepend;
  const std::string_view scheme = prepend_scheme(node);
  TOK_REQUIRE(scheme == "always" || scheme == "first" || scheme == "never",
              "{}.prepend_scheme: wanted always, first or never, got {}", node.where(), scheme);
  const std::string_view replacement = node.text_or("replacement", "\u2581");
  TOK_REQUIRE(!replacement.empty(), "{}.replacement: wanted a character", node.where());
  return MetaspaceRule{.replacement = std::string(replacement),
                       .prepend = scheme == "always"  ? Prepend::kAlways
                                  : scheme == "first" ? Prepend::kFirst
                                                      : Prepend::kNever,
                       .splits = node.boolean_or("split", true)};
}

void append_decoder_steps(const JsonNode& node, std::vector<DecoderStep>& steps) {
  const std::string_view type = node.at("type").text();
  if (type == "Sequence") {
    for_each_of(node, "decoders",
                [&](const JsonNode& child) { append_decoder_steps(child, steps); });
  } else if (type == "Replace") {
    const JsonNode pattern = node.at("pattern");
    const auto text = pattern.find("String");
    TOK_REQUIRE(text, "{}.pattern: wanted a String", node.where());
    steps.emplace_back(ReplaceInTokens{.from = std::string(text->text()),
                                       .to = std::string(node.at("content").text())});
  } else if (type == "ByteFallback") {
    steps.emplace_back(ByteTokens{});
  } else if (type == "Fuse") {
    steps.emplace_back(FuseTokens{});
  } else if (type == "Strip") {
    steps.emplace_back(StripTokens{.content = std::string(node.text_or("content", " ")),
                                   .start = node.at("start").integer(),
                                   .stop = node.at("stop").integer()});
  } else if (type == "Metaspace") {
    steps.emplace_back(
        MetaspaceTokens{.replacement = std::string(node.text_or("replacement", "\u2581")),
                        .strips_first = prepend_scheme(node) != "never"});
  } else {
    fail(
        "{}: the decoder {} is not supported, only ByteLevel of a byte-level BPE, and "
        "ByteFallback, "
        "Fuse, Metaspace, Replace, Sequence and Strip of others",
        node.where(), type);
  }
}

}  // namespace

void read_normalizer(const JsonNode& node, Normalizer& normalizer) {
  const std::string_view type = node.at("type").text();
  if (type == "Sequence") {
    for_each_of(node, "normalizers",
                [&](const JsonNode& child) { read_normalizer(child, normalizer); });
  } else if (const auto form = form_of(type)) {
    normalizer.add(*form);
  } else if (type == "Prepend") {
    normalizer.add(PrependStep{.prefix = std::string(node.at("prepend").text())});
  } else if (type == "Replace") {
    const JsonNode pattern = node.at("pattern");
    const std::string to(node.at("content").text());
    if (const auto from = pattern.find("String"))
      normalizer.add(ReplaceStep{.from = std::string(from->text()), .to = to});
    else
      normalizer.add(ReplaceMatchesStep{
          .pattern = RegexSplitter(regex_of(pattern), pattern.where()), .to = to});
  } else if (type == "Strip") {
    normalizer.add(StripStep{.left = node.boolean_or("strip_left", true),
                             .right = node.boolean_or("strip_right", true)});
  } else if (type == "Lowercase") {
    normalizer.add(LowercaseStep{});
  } else if (type == "StripAccents") {
    normalizer.add(StripAccentsStep{});
  } else {
    fail(
        "{}: the normalizer {} is not supported, only NFC, NFD, NFKC, NFKD, Lowercase, Prepend, "
        "Replace, Sequence, Strip and StripAccents",
        node.where(), type);
  }
}

bool read_pre_tokenizer(const JsonNode& node, std::vector<WordRule>& rules) {
  const std::string_view type = node.at("type").text();
  if (type == "Sequence") {
    bool done = false;
    bool is_spelled = false;
    for_each_of(node, "pretokenizers", [&](const JsonNode& child) {
      if (done && !std::exchange(is_spelled, true)) rules.emplace_back(SpelledBytesRule{});
      const size_t before = rules.size();
      const bool is_byte_level = read_pre_tokenizer(child, rules);
      TOK_REQUIRE(!done || !has_metaspace(std::span(rules).subspan(before)),
                  "{}: Metaspace after ByteLevel is not supported", child.where());
      TOK_REQUIRE(!done || !is_byte_level, "{}: a second ByteLevel is not supported",
                  child.where());
      done = done || is_byte_level;
    });
    return done;
  }
  if (type == "ByteLevel") {
    if (node.boolean_or("add_prefix_space", true)) rules.emplace_back(PrefixSpaceRule{});
    if (node.boolean_or("use_regex", true)) rules.emplace_back(KnownRule{});
    return true;
  }
  if (type == "Split") {
    rules.push_back(read_split(node));
  } else if (type == "Digits") {
    rules.emplace_back(DigitsRule{.individual = node.boolean_or("individual_digits", false)});
  } else if (type == "Metaspace") {
    rules.push_back(read_metaspace(node));
  } else if (!read_named_split(type, node, rules)) {
    fail(
        "{}: the pre-tokenizer {} is not supported, only BertPreTokenizer, ByteLevel, "
        "CharDelimiterSplit, Digits, Metaspace, Punctuation, Sequence, Split, Whitespace and "
        "WhitespaceSplit",
        node.where(), type);
  }
  return false;
}

// Tokens of characters without a decoder are words, which spaces separate.
std::optional<std::vector<DecoderStep>> read_decoder(const std::optional<JsonNode>& node,
                                                     bool is_byte_level) {
  if (is_byte_level) {
    const std::string_view type = node ? node->at("type").text() : "ByteLevel";
    TOK_REQUIRE(type == "ByteLevel", "{}: wanted the decoder ByteLevel, got {}", node->where(),
                type);
    return std::nullopt;
  }
  std::vector<DecoderStep> steps;
  if (node)
    append_decoder_steps(*node, steps);
  else
    steps.emplace_back(SpacesBetweenTokens{});
  return steps;
}

}  // namespace tokamak
