#include "tokamak/tokenizer/formats/special_tokens.h"

#include <algorithm>
#include <map>
#include <span>

#include "tokamak/core/error.h"
#include "tokamak/core/json.h"
#include "tokamak/core/names.h"

namespace tokamak {
namespace {

constexpr std::string_view kBosNames[] = {"<|begin_of_text|>", "<s>"};
constexpr std::string_view kEosNames[] = {"<|end_of_text|>", "<|endoftext|>", "</s>"};
constexpr const char* kKeys[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                 "pad_token", "cls_token", "mask_token"};
constexpr const char* kListKeys[] = {"additional_special_tokens", "extra_special_tokens"};

Json parse_side_file(std::string_view text, std::string_view what) {
  if (text.empty()) return Json::object();
  Json json = parse_json(text, what);
  TOK_REQUIRE(json.is_object(), "{}: wanted a JSON object", what);
  return json;
}

// `what` names the key. Flags that are not given are those of tokenizers' AddedToken.
AddedToken read_token(const Json& value, bool special, const std::string& what) {
  const bool is_described = value.is_object() && value.contains("content");
  const Json& content = is_described ? value["content"] : value;
  TOK_REQUIRE(content.is_string(), "{}: wanted a string or an object with content", what);
  AddedToken token{.content = content.get<std::string>(), .special = special};
  if (!is_described) return token;
  const auto flag = [&](const char* key, bool otherwise) {
    return json_member_or<bool>(value, key, otherwise, what);
  };
  token.single_word = flag("single_word", false);
  token.lstrip = flag("lstrip", false);
  token.rstrip = flag("rstrip", false);
  token.special = special || flag("special", false);
  token.normalized = flag("normalized", !token.special);
  return token;
}

// Tokens of added_tokens_decoder are in the order of their ids; the ids have no other meaning.
std::map<int64_t, AddedToken> described_tokens(const Json& config, const std::string& what) {
  std::map<int64_t, AddedToken> tokens;
  const Json decoder = config.value("added_tokens_decoder", Json::object());
  TOK_REQUIRE(decoder.is_object(), "{}: added_tokens_decoder: wanted an object", what);
  for (const auto& [id, token] : decoder.items()) {
    TOK_REQUIRE(!id.empty() && id.size() < 10 && id.find_first_not_of("0123456789") == id.npos,
                "{}: added_tokens_decoder: \"{}\" is not an id", what, id.substr(0, 40));
    tokens[std::stoll(id)] =
        read_token(token, false, fmt::format("{}: added_tokens_decoder: {}", what, id));
  }
  return tokens;
}

// Adds those of added_tokens.json, which are special if another file names them.
void add_listed_tokens(std::string_view text, std::string_view name,
                       const std::vector<AddedToken>& named,
                       std::map<int64_t, AddedToken>& tokens) {
  const std::string what = fmt::format("added_tokens.json next to {}", name);
  const Json file = parse_side_file(text, what);
  for (const auto& [content, id] : file.items()) {
    TOK_REQUIRE(id.is_number_integer(), "{}: \"{}\": wanted an id", what, printable(content));
    const bool special = std::ranges::any_of(
        named, [&c = content](const auto& token) { return token.content == c; });
    tokens[id.get<int64_t>()] = {.content = content, .normalized = !special, .special = special};
  }
}

}  // namespace

SpecialTokens read_special_tokens(const TokenizerSideFiles& side, std::string_view name) {
  const std::string what = fmt::format("tokenizer_config.json next to {}", name);
  const std::string map_what = fmt::format("special_tokens_map.json next to {}", name);
  const Json config = parse_side_file(side.config, what);
  const bool is_described = config.contains("added_tokens_decoder");
  const Json map =
      is_described ? Json::object() : parse_side_file(side.special_tokens_map, map_what);
  SpecialTokens named;
  for (const char* key : kKeys) {
    const bool in_map = map.contains(key);
    const Json& file = in_map ? map : config;
    if (!file.contains(key)) continue;
    AddedToken token;
    if (!file[key].is_null())
      token = read_token(file[key], true, fmt::format("{}: {}", in_map ? map_what : what, key));
    if (std::string_view(key) == "bos_token") named.bos = token.content;
    if (std::string_view(key) == "eos_token") named.eos = token.content;
    named.all.push_back(std::move(token));
  }
  for (const char* key : kListKeys) {
    for (const Json* file : {&config, &map}) {
      if (!file->contains(key)) continue;
      for (const Json& value : (*file)[key])
        named.all.push_back(
            read_token(value, true, fmt::format("{}: {}", file == &map ? map_what : what, key)));
    }
  }
  std::map<int64_t, AddedToken> first = described_tokens(config, what);
  if (!is_described) add_listed_tokens(side.added_tokens, name, named.all, first);
  std::vector<AddedToken> all;
  all.reserve(first.size() + named.all.size());
  for (auto& [id, token] : first) all.push_back(std::move(token));
  all.insert(all.end(), named.all.begin(), named.all.end());
  std::erase_if(all, [](const AddedToken& token) { return token.content.empty(); });
  named.all = std::move(all);
  return named;
}

DocumentEnds find_document_ends(const SpecialTokens& named,
                                const DocumentEnds& added_by_post_processor,
                                const std::function<int32_t(std::string_view)>& id_of) {
  const auto find = [&](const std::optional<std::string>& token, std::optional<int32_t> added,
                        std::span<const std::string_view> names) -> std::optional<int32_t> {
    if (token && token->empty()) return std::nullopt;
    if (token) return id_of(*token);
    if (added) return added;
    for (const std::string_view known : names) {
      if (const int32_t found = id_of(known); found >= 0) return found;
    }
    return std::nullopt;
  };
  return {.bos = find(named.bos, added_by_post_processor.bos, kBosNames),
          .eos = find(named.eos, added_by_post_processor.eos, kEosNames)};
}

}  // namespace tokamak
