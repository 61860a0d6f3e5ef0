#include "tokamak/tokenizer/formats/vocab_merges.h"

#include <set>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/core/json.h"
#include "tokamak/tokenizer/split.h"

namespace tokamak {
namespace {

constexpr const char* kEndOfText = "<|endoftext|>";

Json parse_object(std::string_view text, const std::string& what) {
  if (text.empty()) return Json::object();
  Json json = parse_json(text, what);
  TOK_REQUIRE(json.is_object(), "{}: wanted a JSON object", what);
  return json;
}

// The first line may give a version.
Json merges_of(std::string_view text) {
  Json merges = Json::array();
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty() && !line.starts_with("#version")) merges.push_back(line);
  }
  return merges;
}

// The tokens that are found in a text before it is split.
class AddedTokenList {
 public:
  void add(const std::string& content, const Json& id, Json token) {
    if (!known_.insert(content).second) return;
    token["content"] = content;
    token["id"] = id;
    tokens_.push_back(std::move(token));
  }

  const Json& tokens() const { return tokens_; }

 private:
  std::set<std::string> known_;
  Json tokens_ = Json::array();
};

void add_from_config(const Json& config, const std::string& what, AddedTokenList& list) {
  const Json decoder = config.value("added_tokens_decoder", Json::object());
  TOK_REQUIRE(decoder.is_object(), "{}: added_tokens_decoder: wanted an object", what);
  for (const auto& [id, token] : decoder.items()) {
    const auto content = json_member<std::string>(token, "content", what);
    TOK_REQUIRE(!id.empty() && id.size() < 10 && id.find_first_not_of("0123456789") == id.npos,
                "{}: added_tokens_decoder: \"{}\" is not an id", what, id.substr(0, 40));
    list.add(content, std::stoi(id), token);
  }
}

Json pre_tokenizer_of(const std::string& kind, const Json& config, const std::string& what) {
  Json bytes = {{"type", "ByteLevel"},
                {"add_prefix_space", json_member_or<bool>(config, "add_prefix_space", false, what)},
                {"use_regex", kind == "GPT2Tokenizer"}};
  if (kind == "GPT2Tokenizer") return bytes;
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", kQwen2Pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
}

}  // namespace

JoinedTokenizer join_vocab_and_merges(const VocabMergesFiles& files, std::string_view folder) {
  const auto file = [&](const char* name) { return fmt::format("{}/{}", folder, name); };
  const std::string config_name = file("tokenizer_config.json");
  Json config = parse_object(files.config, config_name);
  const Json map = parse_object(files.special_tokens_map, file("special_tokens_map.json"));
  std::string kind =
      json_member_or<std::string>(config, "tokenizer_class", "GPT2Tokenizer", config_name);
  if (kind.ends_with("Fast")) kind.resize(kind.size() - 4);
  TOK_REQUIRE(kind == "GPT2Tokenizer" || kind == "Qwen2Tokenizer",
              "{}: tokenizer_class \"{}\" is not supported without tokenizer.json, only "
              "GPT2Tokenizer and Qwen2Tokenizer; AutoTokenizer.from_pretrained(IN)"
              ".save_pretrained(OUT) in Python with transformers writes tokenizer.json",
              config_name, kind);
  const char* const other = kind == "GPT2Tokenizer" ? "bos_token" : "pad_token";
  for (const char* key : {other, "eos_token", "unk_token"})
    if (!config.contains(key) && !map.contains(key)) config[key] = kEndOfText;
  Json vocab = parse_object(files.vocab, file("vocab.json"));
  AddedTokenList added;
  add_from_config(config, config_name, added);
  const Json more = parse_object(files.added_tokens, file("added_tokens.json"));
  for (const auto& [content, id] : more.items()) added.add(content, id, Json::object());
  const Json json = {
      {"added_tokens", added.tokens()},
      {"normalizer", kind == "Qwen2Tokenizer" ? Json{{"type", "NFC"}} : Json()},
      {"pre_tokenizer", pre_tokenizer_of(kind, config, config_name)},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"}, {"vocab", std::move(vocab)}, {"merges", merges_of(files.merges)}}}};
  // A merge that is not UTF-8 is then refused as one of tokens that the vocabulary does not have.
  constexpr auto kReplace = Json::error_handler_t::replace;
  return {.json = json.dump(-1, ' ', false, kReplace), .config = config.dump()};
}

}  // namespace tokamak
