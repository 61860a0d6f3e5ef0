#include "tokamak/core/json.h"
#include "tokamak/tokenizer/bpe_tokenizer.h"
#include "tokamak/tokenizer/digest.h"
#include "tokamak/tokenizer/formats/json_node.h"
#include "tokamak/tokenizer/formats/ranks.h"

namespace tokamak {
namespace {

constexpr int64_t kMostSpecialTokens = 1 << 16;

// The special tokens of files that have no list of them.
constexpr std::string_view kFirstSpecialTokens[] = {"<unk>",
                                                    "<s>",
                                                    "</s>",
                                                    "[INST]",
                                                    "[/INST]",
                                                    "[AVAILABLE_TOOLS]",
                                                    "[/AVAILABLE_TOOLS]",
                                                    "[TOOL_RESULTS]",
                                                    "[/TOOL_RESULTS]",
                                                    "[TOOL_CALLS]",
                                                    "[IMG]",
                                                    "<pad>",
                                                    "[IMG_BREAK]",
                                                    "[IMG_END]",
                                                    "[PREFIX]",
                                                    "[MIDDLE]",
                                                    "[SUFFIX]",
                                                    "[SYSTEM_PROMPT]",
                                                    "[/SYSTEM_PROMPT]",
                                                    "[TOOL_CONTENT]"};

int64_t size_in(const JsonNode& config, std::string_view key, int64_t most) {
  const JsonNode node = config.at(key);
  const int64_t size = node.integer();
  TOK_REQUIRE(size >= 0 && size <= most, "{}: wanted a number from 0 to {}, got {}", node.where(),
              most, size);
  return size;
}

std::vector<std::string> special_tokens(const JsonNode& root, int64_t count) {
  std::vector<std::string> tokens(static_cast<size_t>(count));
  const auto put = [&](std::string_view where, int64_t rank, std::string_view token) {
    TOK_REQUIRE(rank >= 0 && rank < count, "{}: wanted a rank below {}, got {}", where, count,
                rank);
    tokens[static_cast<size_t>(rank)] = token;
  };
  int64_t rank = 0;
  if (const auto list = root.find("special_tokens")) {
    size_t index = 0;
    for (const auto entry : list->array()) {
      const JsonNode token = list->element(entry, index++);
      put(token.where(), token.at("rank").integer(), token.at("token_str").text());
    }
  } else {
    for (const std::string_view token : kFirstSpecialTokens) put(root.where(), rank++, token);
  }
  for (rank = 0; rank < count; ++rank) {
    std::string& token = tokens[static_cast<size_t>(rank)];
    if (token.empty()) token = fmt::format("<SPECIAL_{}>", rank);
  }
  return tokens;
}

// The file has more tokens than the model: those of the highest ranks are left out.
void read_vocabulary_of_ranks(const JsonNode& root, int64_t count, int64_t first_id,
                              Vocabulary& vocabulary) {
  const JsonNode list = root.at("vocab");
  std::string bytes;
  size_t index = 0;
  int64_t found = 0;
  for (const auto entry : list.array()) {
    const JsonNode token = list.element(entry, index++);
    const int64_t rank = token.at("rank").integer();
    if (rank >= count) continue;
    TOK_REQUIRE(from_base64(token.at("token_bytes").text(), bytes), "{}.token_bytes: wanted base64",
                token.where());
    TOK_REQUIRE(rank >= 0 && vocabulary.add(bytes, static_cast<int32_t>(first_id + rank)),
                "{}: the token or its rank {} is repeated", token.where(), rank);
    ++found;
  }
  TOK_REQUIRE(found == count, "{}: wanted {} tokens for the configured vocabulary, found {}",
              list.where(), count, found);
}

}  // namespace

std::unique_ptr<Tokenizer> parse_tekken(std::string_view text, std::string_view name) {
  simdjson::dom::parser parser;
  const JsonNode root(parse_dom(parser, text, name), std::string(name), ": ");
  const JsonNode config = root.at("config");
  BpeDefinition definition;
  definition.name = name;
  Bpe& bpe = definition.bpe;
  const auto most = static_cast<int64_t>(root.at("vocab").array().size()) + kMostSpecialTokens;
  const int64_t size = size_in(config, "default_vocab_size", most);
  const int64_t num_special = size_in(config, "default_num_special_tokens", size);
  bpe.vocabulary.reserve(static_cast<size_t>(size), text.size() / 4);
  read_vocabulary_of_ranks(root, size - num_special, num_special, bpe.vocabulary);
  finish_ranks(bpe, name);
  int32_t id = 0;
  for (const std::string& token : special_tokens(root, num_special)) {
    TOK_REQUIRE(bpe.vocabulary.add_hidden(token, id), "{}: the special token {} is repeated", name,
                token);
    if (token == "<s>") definition.bos = id;
    if (token == "</s>") definition.eos = id;
    ++id;
  }
  const JsonNode pattern = config.at("pattern");
  definition.rules.emplace_back(
      PatternRule{.splitter = RegexSplitter(pattern.text(), pattern.where())});
  definition.hash = digest(text, 1);
  return make_bpe_tokenizer(std::move(definition));
}

}  // namespace tokamak
