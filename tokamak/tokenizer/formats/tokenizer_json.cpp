#include <unordered_map>
#include <unordered_set>

#include "tokamak/core/json.h"
#include "tokamak/tokenizer/bpe_tokenizer.h"
#include "tokamak/tokenizer/byte_level.h"
#include "tokamak/tokenizer/digest.h"
#include "tokamak/tokenizer/formats/json_rules.h"
#include "tokamak/tokenizer/formats/special_tokens.h"

namespace tokamak {
namespace {

constexpr size_t kMaxAddedTokenBytes = 4096;

std::string shown(std::string_view token) {
  constexpr size_t kShown = 60;
  return token.size() <= kShown
             ? std::string(token)
             : fmt::format("{}... ({} bytes)", token.substr(0, kShown), token.size());
}

/// Finds tokens by their text in the file, over a vocabulary of bytes. In a byte-level file each
/// character of a token stands for a byte.
class TokenNames {
 public:
  TokenNames(Vocabulary& vocabulary, bool is_byte_level)
      : vocabulary_(vocabulary), is_byte_level_(is_byte_level) {}

  int32_t find(std::string_view token) {
    if (to_bytes(token)) {
      const int32_t id = vocabulary_.find(bytes_);
      if (id >= 0) return id;
    }
    const auto it = others_.find(token);
    return it == others_.end() ? -1 : it->second;
  }

  /// Adds a token of the model, which merging can make unless a byte-level file spells it
  /// otherwise.
  bool add(std::string_view token, int32_t id) {
    if (to_bytes(token)) return vocabulary_.add(bytes_, id);
    return others_.emplace(token, id).second && vocabulary_.add_hidden(token, id);
  }

  /// Adds a token that is only found as text, never made by merging.
  bool add_outside_model(std::string_view token, int32_t id) {
    if (!others_.emplace(token, id).second) return false;
    return vocabulary_.add_hidden(to_bytes(token) ? bytes_ : token, id);
  }

 private:
  bool to_bytes(std::string_view token) {
    if (is_byte_level_) return from_byte_level(token, bytes_);
    bytes_ = token;
    return true;
  }

  Vocabulary& vocabulary_;
  bool is_byte_level_;
  std::unordered_map<std::string_view, int32_t> others_;
  std::string bytes_;
};

int32_t id_of(const JsonNode& node, const Vocabulary& vocabulary) {
  const int64_t id = node.integer();
  TOK_REQUIRE(id >= 0 && id <= vocabulary.max_id(), "{}: wanted an id from 0 to {}, got {}",
              node.where(), vocabulary.max_id(), id);
  return static_cast<int32_t>(id);
}

void read_vocabulary(const JsonNode& node, size_t added_tokens, Vocabulary& vocabulary,
                     TokenNames& names) {
  size_t count = 0;
  size_t bytes = 0;
  for (const auto& [token, id] : node.object()) {
    ++count;
    bytes += token.size();
  }
  vocabulary.reserve(count + added_tokens, bytes);
  for (const auto& [token, value] : node.object()) {
    int64_t id = -1;
    if (value.get(id) != simdjson::SUCCESS || id < 0 || id > vocabulary.max_id()) {
      id =
          id_of(JsonNode(value, fmt::format("{}[\"{}\"]", node.where(), shown(token))), vocabulary);
    }
    if (names.add(token, static_cast<int32_t>(id))) continue;
    TOK_REQUIRE(names.find(token) < 0, "{}: the token \"{}\" is repeated", node.where(),
                shown(token));
    fail("{}: the id {} of \"{}\" is repeated", node.where(), id, shown(token));
  }
}

/// Reads one merge, "left right" or ["left", "right"].
std::pair<std::string_view, std::string_view> read_pair(const JsonNode& merges,
                                                        simdjson::dom::element entry,
                                                        size_t index) {
  std::string_view text;
  if (entry.get(text) == simdjson::SUCCESS) {
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  simdjson::dom::array pair;
  std::string_view left;
  std::string_view right;
  if (entry.get(pair) == simdjson::SUCCESS && pair.size() == 2 &&
      pair.at(0).get(left) == simdjson::SUCCESS && pair.at(1).get(right) == simdjson::SUCCESS) {
    return {left, right};
  }
  fail("{}[{}]: wanted \"left right\" or [\"left\", \"right\"]", merges.where(), index);
}

void read_merges(const JsonNode& node, TokenNames& names, PairMap& merges) {
  const simdjson::dom::array array = node.array();
  size_t count = 0;
  for ([[maybe_unused]] const auto entry : array) ++count;
  TOK_REQUIRE(count < Merge::kNone, "{}: {} merges are too many", node.where(), count);
  merges.reserve(count);
  std::string joined;
  uint32_t rank = 0;
  for (const auto entry : array) {
    const auto [left, right] = read_pair(node, entry, rank);
    joined.assign(left).append(right);
    const int32_t ids[] = {names.find(left), names.find(right), names.find(joined)};
    for (const auto& [id, token] : {std::pair(ids[0], left), std::pair(ids[1], right),
                                    std::pair(ids[2], std::string_view(joined))}) {
      TOK_REQUIRE(id >= 0, "{}[{}]: the token \"{}\" is not in the vocabulary", node.where(), rank,
                  shown(token));
    }
    merges.set(ids[0], ids[1], {.rank = rank, .id = ids[2]});
    ++rank;
  }
}

void refuse_unless_empty(const JsonNode& model, std::string_view key) {
  TOK_REQUIRE(model.text_or(key, "").empty(), "{}.{}: is not supported", model.where(), key);
}

void read_model(const JsonNode& model, size_t added_tokens, Bpe& bpe, TokenNames& names) {
  const std::string_view type = model.text_or("type", "BPE");
  TOK_REQUIRE(type == "BPE", "{}.type: wanted BPE, got {}", model.where(), type);
  const auto dropout = model.find("dropout");
  TOK_REQUIRE(!dropout || dropout->number() == 0.0, "{}.dropout: is not supported", model.where());
  refuse_unless_empty(model, "continuing_subword_prefix");
  refuse_unless_empty(model, "end_of_word_suffix");
  read_vocabulary(model.at("vocab"), added_tokens, bpe.vocabulary, names);
  read_merges(model.at("merges"), names, bpe.merges);
  bpe.find_byte_ids();
  bpe.find_fallback_ids(model.boolean_or("byte_fallback", false));
  bpe.whole_words_first = model.boolean_or("ignore_merges", false);
  bpe.fuse_unknown = model.boolean_or("fuse_unk", false);
  if (const auto unknown = model.find("unk_token")) {
    const int32_t id = names.find(unknown->text());
    if (id >= 0) bpe.unknown = id;
  }
}

std::vector<AddedToken> read_added_tokens(const JsonNode& node, Vocabulary& vocabulary,
                                          TokenNames& names) {
  std::vector<AddedToken> tokens;
  std::unordered_set<int32_t> seen;
  size_t index = 0;
  for (const auto entry : node.array()) {
    const JsonNode token = node.element(entry, index++);
    AddedToken added{.content = std::string(token.at("content").text()),
                     .id = id_of(token.at("id"), vocabulary),
                     .single_word = token.boolean_or("single_word", false),
                     .lstrip = token.boolean_or("lstrip", false),
                     .rstrip = token.boolean_or("rstrip", false),
                     .normalized = token.boolean_or("normalized", false),
                     .special = token.boolean_or("special", false)};
    TOK_REQUIRE(added.content.size() <= kMaxAddedTokenBytes,
                "{}.content: wanted at most {} bytes, got {}", token.where(), kMaxAddedTokenBytes,
                added.content.size());
    const int32_t known = names.find(added.content);
    if (known < 0) {
      TOK_REQUIRE(names.add_outside_model(token.at("content").text(), added.id),
                  "{}: the id {} of \"{}\" is repeated", token.where(), added.id,
                  shown(added.content));
    } else {
      TOK_REQUIRE(known == added.id, "{}: \"{}\" has the id {} here and {} before", token.where(),
                  shown(added.content), added.id, known);
    }
    if (seen.insert(added.id).second) tokens.push_back(std::move(added));
  }
  return tokens;
}

/// Adds the tokens that only the files next to tokenizer.json name. One that the model lacks gets
/// the next id, as in transformers. Returns what changes ids, for the digest.
std::string add_named_tokens(const SpecialTokens& named, size_t model_tokens, std::string_view name,
                             TokenNames& names, BpeDefinition& definition) {
  std::unordered_set<std::string_view> known;
  auto next = static_cast<int32_t>(model_tokens);
  for (const AddedToken& token : definition.added_tokens) {
    known.insert(token.content);
    next = std::max(next, token.id + 1);
  }
  std::string changes;
  std::vector<AddedToken> more;
  for (const AddedToken& token : named.all) {
    if (!known.insert(token.content).second) continue;
    TOK_REQUIRE(token.content.size() <= kMaxAddedTokenBytes,
                "tokenizer_config.json next to {}: wanted a token of at most {} bytes, got {}",
                name, kMaxAddedTokenBytes, token.content.size());
    AddedToken added = token;
    added.id = names.find(token.content);
    if (added.id < 0) {
      added.id = next++;
      TOK_REQUIRE(names.add_outside_model(token.content, added.id),
                  "{}: \"{}\" of tokenizer_config.json would get the next id, {}, which is in use: "
                  "add the token to added_tokens",
                  name, shown(token.content), added.id);
    }
    changes += fmt::format("{} {} {:d}{:d}{:d}{:d} ", added.id, added.content, added.single_word,
                           added.lstrip, added.rstrip, added.normalized);
    more.push_back(std::move(added));
  }
  definition.added_tokens.insert(definition.added_tokens.end(), more.begin(), more.end());
  return changes;
}

void read_template(const JsonNode& node, TokenNames& names, DocumentEnds& ends) {
  const JsonNode single = node.at("single");
  bool after_text = false;
  size_t index = 0;
  for (const auto entry : single.array()) {
    const JsonNode piece = single.element(entry, index++);
    const auto token = piece.find("SpecialToken");
    if (!token) {
      piece.at("Sequence");
      TOK_REQUIRE(!after_text, "{}: a second Sequence is not supported", piece.where());
      after_text = true;
      continue;
    }
    const std::string_view name = token->at("id").text();
    const int32_t id = names.find(name);
    TOK_REQUIRE(id >= 0, "{}: the token \"{}\" is not in the vocabulary", token->where(),
                shown(name));
    std::optional<int32_t>& end = after_text ? ends.eos : ends.bos;
    TOK_REQUIRE(!end, "{}: wanted at most one token on each side of the text", single.where());
    end = id;
  }
}

// Reads ["name", id].
int32_t token_of_pair(const JsonNode& node, TokenNames& names) {
  const simdjson::dom::array pair = node.array();
  TOK_REQUIRE(pair.size() == 2, "{}: wanted a token and its id", node.where());
  const std::string_view name = node.element(pair.at(0).value_unsafe(), 0).text();
  const int32_t id = names.find(name);
  TOK_REQUIRE(id >= 0, "{}: the token \"{}\" is not in the vocabulary", node.where(), shown(name));
  return id;
}

void read_post_processor(const JsonNode& node, TokenNames& names, DocumentEnds& ends) {
  const std::string_view type = node.at("type").text();
  if (type == "Sequence") {
    const JsonNode list = node.at("processors");
    size_t index = 0;
    for (const auto entry : list.array()) {
      read_post_processor(list.element(entry, index++), names, ends);
    }
  } else if (type == "TemplateProcessing") {
    read_template(node, names, ends);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    ends.bos = token_of_pair(node.at("cls"), names);
    ends.eos = token_of_pair(node.at("sep"), names);
  } else {
    TOK_REQUIRE(type == "ByteLevel", "{}: the post-processor {} is not supported", node.where(),
                type);
  }
}

}  // namespace

// Uses simdjson rather than nlohmann-json, so that 9 MB of vocabulary does not delay the start.
std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view text, std::string_view name,
                                                const TokenizerSideFiles& side) {
  simdjson::dom::parser parser;
  const JsonNode root(parse_dom(parser, text, name), std::string(name), ": ");
  BpeDefinition definition;
  definition.name = name;
  const auto pre_tokenizer = root.find("pre_tokenizer");
  const bool is_byte_level = pre_tokenizer && read_pre_tokenizer(*pre_tokenizer, definition.rules);
  definition.bpe.of_characters = !is_byte_level;
  TokenNames names(definition.bpe.vocabulary, is_byte_level);
  const auto added = root.find("added_tokens");
  const SpecialTokens named = read_special_tokens(side, name);
  const size_t more_tokens = (added ? added->array().size() : 0) + named.all.size();
  read_model(root.at("model"), more_tokens, definition.bpe, names);
  const size_t model_tokens = definition.bpe.vocabulary.size();
  if (added) definition.added_tokens = read_added_tokens(*added, definition.bpe.vocabulary, names);
  const std::string changes = add_named_tokens(named, model_tokens, name, names, definition);
  if (const auto normalizer = root.find("normalizer"))
    read_normalizer(*normalizer, definition.normalizer);
  for (AddedToken& token : definition.added_tokens) {
    if (!token.normalized) continue;
    std::string found = definition.normalizer.apply(token.content);
    if (found != token.content) definition.decoded[token.id] = found;
    token.content = std::move(found);
  }
  definition.decoder = read_decoder(root.find("decoder"), is_byte_level);
  DocumentEnds added_ends;
  if (const auto post = root.find("post_processor")) read_post_processor(*post, names, added_ends);
  const DocumentEnds ends = find_document_ends(
      named, added_ends, [&names](std::string_view token) { return names.find(token); });
  definition.bos = ends.bos;
  definition.eos = ends.eos;
  definition.hash = digest(
      fmt::format("{} {}{}", ends.bos.value_or(-1), ends.eos.value_or(-1), changes), digest(text));
  return make_bpe_tokenizer(std::move(definition));
}

}  // namespace tokamak
