#include <array>

#include "tokamak/core/error.h"
#include "tokamak/core/value.h"
#include "tokamak/tokenizer/bpe_tokenizer.h"
#include "tokamak/tokenizer/digest.h"
#include "tokamak/tokenizer/formats/ranks.h"

namespace tokamak {
namespace {

constexpr size_t kMaxTokenBytes = 1024;
constexpr int kNumSpecialTokens = 256;
constexpr int kLlama3Digits = 3;

/// Returns the 256 special tokens of Llama 3, in the order of their ids.
std::vector<std::string> llama3_special_tokens() {
  std::vector<std::string> tokens = {"<|begin_of_text|>",
                                     "<|end_of_text|>",
                                     "<|reserved_special_token_0|>",
                                     "<|reserved_special_token_1|>",
                                     "<|reserved_special_token_2|>",
                                     "<|reserved_special_token_3|>",
                                     "<|start_header_id|>",
                                     "<|end_header_id|>",
                                     "<|reserved_special_token_4|>",
                                     "<|eot_id|>"};
  for (int i = 5; tokens.size() < kNumSpecialTokens; ++i) {
    tokens.push_back(fmt::format("<|reserved_special_token_{}|>", i));
  }
  return tokens;
}

constexpr std::array<int16_t, 256> kBase64 = [] {
  std::array<int16_t, 256> values{};
  values.fill(-1);
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < kDigits.size(); ++i) {
    values[static_cast<uint8_t>(kDigits[i])] = static_cast<int16_t>(i);
  }
  return values;
}();

/// Calls `on_line(text, number)` for each line that is not empty.
template <class OnLine>
void for_each_line(std::string_view text, OnLine&& on_line) {
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) on_line(line, number);
  }
}

/// Adds a merge for every two tokens whose concatenation is a token.
void make_merges(const Vocabulary& vocabulary, PairMap& merges) {
  merges.reserve(vocabulary.size() * 3);
  for (int32_t id = 0; id < vocabulary.end_id(); ++id) {
    const std::string_view bytes = vocabulary.bytes_of(id);
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const int32_t left = vocabulary.find(bytes.substr(0, cut));
      if (left < 0) continue;
      const int32_t right = vocabulary.find(bytes.substr(cut));
      if (right >= 0) merges.set(left, right, {.rank = static_cast<uint32_t>(id), .id = id});
    }
  }
}

void read_ranks(std::string_view text, std::string_view name, Vocabulary& vocabulary) {
  size_t lines = 0;
  for_each_line(text, [&lines](std::string_view, size_t) { ++lines; });
  vocabulary.reserve(lines + kNumSpecialTokens, text.size() / 2);
  std::string bytes;
  for_each_line(text, [&](std::string_view line, size_t number) {
    const size_t space = std::min(line.find(' '), line.size());
    TOK_REQUIRE(space <= kMaxTokenBytes * 4 / 3 + 4 && from_base64(line.substr(0, space), bytes),
                "{}: line {}: wanted a token of at most {} bytes in base64, a space and its rank",
                name, number, kMaxTokenBytes);
    const auto rank = parse_number<int32_t>(line.substr(std::min(space + 1, line.size())));
    TOK_REQUIRE(rank && *rank >= 0 && *rank <= vocabulary.max_id() - kNumSpecialTokens,
                "{}: line {}: wanted a rank from 0 to {}", name, number,
                vocabulary.max_id() - kNumSpecialTokens);
    TOK_REQUIRE(vocabulary.add(bytes, *rank), "{}: line {}: the token or its rank {} is repeated",
                name, number, *rank);
  });
}

}  // namespace

bool from_base64(std::string_view text, std::string& bytes) {
  bytes.clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  text.remove_suffix(padding);
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    const int value = kBase64[static_cast<uint8_t>(c)];
    if (value < 0) return false;
    bits = bits << 6U | static_cast<uint32_t>(value);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes.push_back(static_cast<char>(bits >> static_cast<uint32_t>(num_bits) & 0xFFU));
  }
  return true;
}

void finish_ranks(Bpe& bpe, std::string_view name) {
  bpe.find_byte_ids();
  for (size_t byte = 0; byte < 256; ++byte) {
    TOK_REQUIRE(bpe.byte_ids[byte] >= 0, "{}: wanted all 256 single bytes, byte {} is missing",
                name, byte);
  }
  make_merges(bpe.vocabulary, bpe.merges);
  bpe.whole_words_first = true;
}

std::unique_ptr<Tokenizer> parse_tiktoken(std::string_view text, std::string_view name) {
  TOK_REQUIRE(!text.starts_with('\n') || text.size() < 2 || text[1] >= ' ',
              "{}: is a SentencePiece model; wanted tiktoken ranks: use a tokenizer.json instead",
              name);
  BpeDefinition definition;
  definition.name = name;
  Bpe& bpe = definition.bpe;
  read_ranks(text, name, bpe.vocabulary);
  finish_ranks(bpe, name);
  const auto num_ranks = static_cast<int32_t>(bpe.vocabulary.size());
  for (const std::string& token : llama3_special_tokens()) {
    const int32_t id = num_ranks + static_cast<int32_t>(definition.added_tokens.size());
    TOK_REQUIRE(bpe.vocabulary.add_hidden(token, id),
                "{}: rank {} is used twice: wanted ranks without gaps", name, id);
    definition.added_tokens.push_back({.content = token, .id = id, .special = true});
  }
  definition.rules.emplace_back(KnownRule{.max_digits = kLlama3Digits});
  definition.bos = definition.added_tokens[0].id;
  definition.eos = definition.added_tokens[1].id;
  definition.hash = digest(text, 1);
  return make_bpe_tokenizer(std::move(definition));
}

}  // namespace tokamak
