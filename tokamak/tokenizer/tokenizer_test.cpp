#include "tokamak/tokenizer/tokenizer.h"

#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/json.h"
#include "tokamak/tokenizer/byte_level.h"

namespace tokamak {
namespace {

using Ids = std::vector<int32_t>;

Ids encode(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

/// Ids 0-255 are the bytes; 256 "ab", 257 "abc", 258 " ab".
Json tiny() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    vocab[to_byte_level(std::string_view(&c, 1))] = byte;
  }
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  vocab["\u0120ab"] = 258;
  const Json merges = Json::array({"a b", "ab c", "\u0120 ab"});
  return {{"added_tokens", Json::array()},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

Json added_token(int id, const std::string& content, const std::string& flag = "special") {
  return {{"id", id}, {"content", content}, {flag, true}};
}

std::unique_ptr<Tokenizer> parse(const Json& json, const TokenizerSideFiles& side = {}) {
  return parse_tokenizer_json(json.dump(), "t.json", side);
}

std::string error_of(const std::string& text) {
  try {
    parse_tokenizer_json(text, "t.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ByteTokenizer, IdsAreBytes) {
  const auto tokenizer = byte_tokenizer();
  Ids ids{*tokenizer->bos()};
  tokenizer->encode("a\xC3\xFF", ids);
  ids.push_back(*tokenizer->eos());
  EXPECT_EQ(ids, (Ids{256, 97, 195, 255, 257}));
  EXPECT_EQ(tokenizer->decode(ids), "a\xC3\xFF");
  EXPECT_EQ(tokenizer->vocab_size(), 258);
  EXPECT_THROW(tokenizer->decode(Ids{258}), Error);
  EXPECT_THROW(tokenizer->decode(Ids{-1}), Error);
}

TEST(LoadTokenizer, NamesWhatIsMissing) {
  EXPECT_EQ(load_tokenizer("bytes")->vocab_size(), 258);
  EXPECT_THROW(load_tokenizer("/nonexistent/tokenizer"), Error);
}

TEST(TokenizerJson, MergesByRank) {
  const auto tokenizer = parse(tiny());
  EXPECT_EQ(encode(*tokenizer, "abc ab abab"), (Ids{257, 258, 258, 256}));
  EXPECT_EQ(encode(*tokenizer, " abc"), (Ids{32, 257}));
  EXPECT_EQ(encode(*tokenizer, "\xFF\xC3"), (Ids{255, 195}));
  EXPECT_EQ(tokenizer->decode(Ids{257, 258, 255}), "abc ab\xFF");
  EXPECT_THROW(tokenizer->decode(Ids{259}), Error);
  Json pairs = tiny();
  pairs["model"]["merges"] = Json::array({{"a", "b"}, {"ab", "c"}, {"\u0120", "ab"}});
  EXPECT_EQ(encode(*parse(pairs), "abc ab abab"), (Ids{257, 258, 258, 256}));
  EXPECT_NE(parse(pairs)->hash(), tokenizer->hash());
}

TEST(TokenizerJson, IgnoresMergesForWholeWords) {
  Json json = tiny();
  json["model"]["merges"] = Json::array({"b c"});
  json["model"]["vocab"]["bc"] = 259;
  EXPECT_EQ(encode(*parse(json), "abc"), (Ids{97, 259}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(encode(*parse(json), "abc abcd"), (Ids{257, 32, 97, 259, 100}));
}

TEST(TokenizerJson, FindsAddedTokensAsHuggingFaceDoes) {
  Json json = tiny();
  json["added_tokens"] =
      Json::array({added_token(259, "<s>"), added_token(260, "<s>x"),
                   added_token(261, "<l>", "lstrip"), added_token(262, "<r>", "rstrip"),
                   added_token(263, "<w>", "single_word"), added_token(264, "ab", "normalized")});
  json["added_tokens"][5]["id"] = 256;
  const auto tokenizer = parse(json);
  EXPECT_EQ(encode(*tokenizer, "<s><s>xy"), (Ids{259, 260, 'y'}));
  EXPECT_EQ(encode(*tokenizer, "a \n<l> b"), (Ids{'a', 261, ' ', 'b'}));
  EXPECT_EQ(encode(*tokenizer, "a <r> \u3000b"), (Ids{'a', ' ', 262, 'b'}));
  EXPECT_EQ(encode(*tokenizer, "<w>,x<w>"), (Ids{263, ',', 'x', '<', 'w', '>'}));
  EXPECT_EQ(encode(*tokenizer, "abc"), (Ids{256, 'c'}));
  EXPECT_EQ(tokenizer->decode(Ids{261, 'x'}), "<l>x");
}

TEST(TokenizerJson, FindsTheEndsOfDocuments) {
  Json json = tiny();
  json["added_tokens"] = Json::array(
      {added_token(300, "<s>"), added_token(301, "<|endoftext|>"), added_token(302, "[B]")});
  EXPECT_EQ(parse(json)->bos(), 300);
  EXPECT_EQ(parse(json)->eos(), 301);
  EXPECT_EQ(parse(json)->vocab_size(), 303);
  const auto configured =
      parse(json, {.config = R"({"bos_token": null, "eos_token": {"content": "[B]"}})",
                   .special_tokens_map = R"({"bos_token": "<s>"})"});
  EXPECT_EQ(configured->bos(), 300);
  EXPECT_EQ(configured->eos(), 302);
  EXPECT_FALSE(parse(json, {.config = R"({"bos_token": null})"})->bos().has_value());
  EXPECT_NE(configured->hash(), parse(json)->hash());
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", Json::array({{{"SpecialToken", {{"id", "[B]"}, {"type_id", 0}}}},
                              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})}};
  EXPECT_EQ(parse(json)->bos(), 302);
  EXPECT_EQ(parse(json)->eos(), 301);
  json["post_processor"] = {
      {"type", "RobertaProcessing"}, {"sep", {"[B]", 302}}, {"cls", {"<s>", 300}}};
  EXPECT_EQ(parse(json)->bos(), 300);
  EXPECT_EQ(parse(json)->eos(), 302);
}

// The ids are those of transformers 4.57.6 and 5.24.0, with a file whose last token is <s>, 259.
TEST(TokenizerJson, GivesNamedTokensTheNextIdsAsTransformersDoes) {
  Json json = tiny();
  json["added_tokens"] = Json::array({added_token(259, "<s>")});

  const struct {
    const char* config;
    const char* map;
    int bos, eos, size;  // -1: none
    Ids ids;             // of "ab <e>"
    const char* added = "";
  } cases[] = {
      {R"({"eos_token": "<e>"})", "", 259, 260, 261, {256, ' ', 260}},
      {R"({"bos_token": "<b>", "eos_token": "<e>"})", "", 260, 261, 262, {256, ' ', 261}},
      {R"({"bos_token": "<b>", "eos_token": "<b>"})", "", 260, 260, 261, {256, ' ', '<', 'e', '>'}},
      {R"({"pad_token": "<p>", "mask_token": "<m>", "cls_token": "<c>", "sep_token": "<t>",
           "unk_token": "<u>", "eos_token": "<e>", "bos_token": "<b>"})",
       "",
       260,
       261,
       267,
       {256, ' ', 261}},
      {R"({"additional_special_tokens": ["<x>", {"content": "<y>"}], "eos_token": "<e>"})",
       "",
       259,
       260,
       263,
       {256, ' ', 260}},
      {R"({"extra_special_tokens": {"image_token": "<x>"}, "eos_token": "<e>"})",
       "",
       259,
       260,
       262,
       {256, ' ', 260}},
      {R"({"eos_token": "<e>", "added_tokens_decoder": {"1000": {"content": "<y>"},
           "300": {"content": "<e>", "special": true}, "261": {"content": "<z>"}}})",
       "",
       259,
       261,
       263,
       {256, ' ', 261}},
      {R"({"eos_token": "<e>", "added_tokens_decoder": {"259": {"content": "<s>"},
           "260": {"content": "<e>", "lstrip": true}}})",
       "",
       259,
       260,
       261,
       {256, 260}},
      {"", R"({"eos_token": {"content": "<e>", "lstrip": false}})", 259, 260, 261, {256, ' ', 260}},
      {R"({"bos_token": "<b>"})",
       R"({"eos_token": "<e>", "bos_token": "<c>"})",
       260,
       261,
       262,
       {256, ' ', 261}},
      {R"({"eos_token": null})", R"({"eos_token": "<e>"})", 259, 260, 261, {256, ' ', 260}},
      {R"({"eos_token": "<e>", "added_tokens_decoder": {}})",
       R"({"eos_token": "<f>"})",
       259,
       260,
       261,
       {256, ' ', 260}},
      {R"({"eos_token": {"__type": "AddedToken", "content": "<e>"}})",
       "",
       259,
       260,
       261,
       {256, ' ', 260}},
      {R"({"eos_token": "ab", "pad_token": "<p>"})", "", 259, 256, 261, {256, ' ', '<', 'e', '>'}},
      {R"({"eos_token": "<e>"})",
       "",
       259,
       261,
       262,
       {256, ' ', 261},
       R"({"<e>": 300, "<z>": 258})"},
      {"",
       R"({"eos_token": "<e>"})",
       259,
       262,
       263,
       {256, ' ', 262},
       R"({"<z>": 261, "<y>": 260})"},
      {R"({"eos_token": "<e>", "added_tokens_decoder": {}})",
       "",
       259,
       260,
       261,
       {256, ' ', 260},
       R"({"<z>": 258})"},
      {R"({"eos_token": ""})", "", 259, -1, 260, {256, ' ', '<', 'e', '>'}},
  };

  for (const auto& c : cases) {
    const auto tokenizer =
        parse(json, {.config = c.config, .special_tokens_map = c.map, .added_tokens = c.added});
    EXPECT_EQ(tokenizer->bos().value_or(-1), c.bos) << c.config;
    EXPECT_EQ(tokenizer->eos().value_or(-1), c.eos) << c.config;
    EXPECT_EQ(tokenizer->vocab_size(), c.size) << c.config;
    EXPECT_EQ(encode(*tokenizer, "ab <e>"), c.ids) << c.config;
    EXPECT_EQ(tokenizer->hash() == parse(json)->hash(), c.size == 260 && c.eos < 0) << c.config;
  }
  const auto known =
      parse(json, {.config = R"({"bos_token": "<s>", "pad_token": "<s>", "cls_token": null})"});
  EXPECT_EQ(known->hash(), parse(json)->hash()) << "tokens that the file has change nothing";
}

TEST(TokenizerJson, NamesTokensThatCannotBeAdded) {
  Json json = tiny();
  json["model"]["vocab"].erase("a");
  json["model"]["vocab"]["xyz"] = 259;
  json["model"]["merges"] = Json::array();
  const auto error_with = [&json](const std::string& config) -> std::string {
    try {
      parse(json, {.config = config});
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(
      error_with(R"({"eos_token": "<e>"})").find("would get the next id, 259, which is in use"),
      std::string::npos);
  EXPECT_NE(error_with(R"({"eos_token": 3})")
                .find("tokenizer_config.json next to t.json: eos_token: wanted a string"),
            std::string::npos);
  EXPECT_NE(error_with(R"({"added_tokens_decoder": {"x": {"content": "<e>"}}})")
                .find("added_tokens_decoder: \"x\" is not an id"),
            std::string::npos);
  EXPECT_NE(error_with(R"([])").find("wanted a JSON object"), std::string::npos);
}

TEST(TokenizerJson, AppliesRulesInOrder) {
  Json json = tiny();
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", false}};
  const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {digits, byte_level}}};
  EXPECT_EQ(encode(*parse(json), "ab12 ab"), (Ids{258, ' ', '1', ' ', '2', 258}));
  const Json split = {{"type", "Split"},
                      {"pattern", {{"String", "."}}},
                      {"behavior", "Removed"},
                      {"invert", false}};
  json["pre_tokenizer"]["pretokenizers"] = {split, byte_level};
  EXPECT_EQ(encode(*parse(json), "ab.ab"), (Ids{258, 258}));
}

TEST(TokenizerJson, ThreadsShareATokenizer) {
  const auto tokenizer = parse(tiny());
  const Ids expected = encode(*tokenizer, "abc ab abab ba");
  std::vector<std::thread> threads(4);
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      for (int n = 0; n < 50; ++n) EXPECT_EQ(encode(*tokenizer, "abc ab abab ba"), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TokenizerJson, RefusesBadFilesByPlace) {
  const auto changed = [](const std::string& pointer, const Json& value) {
    Json json = tiny();
    json[Json::json_pointer(pointer)] = value;
    return json.dump();
  };
  const std::pair<std::string, std::string> cases[] = {
      {"", "t.json"},
      {tiny().dump().substr(0, 1000), "t.json: not valid JSON: it ends too early"},
      {std::string(1000, '['), "t.json: JSON nested deeper than 64"},
      {"[]", "t.json: wanted an object"},
      {changed("/model/type", "Unigram"), "t.json: model.type: wanted BPE, got Unigram"},
      {changed("/model/dropout", 0.1), "t.json: model.dropout"},
      {changed("/model/vocab/ab", 257), "the id 257"},
      {changed("/model/vocab/ab", -1), "model.vocab[\"ab\"]: wanted an id from 0"},
      {changed("/model/vocab/ab", 2000000000), "model.vocab[\"ab\"]: wanted an id from 0"},
      {changed("/model/vocab/ab", "x"), "model.vocab[\"ab\"]: wanted an integer"},
      {changed("/model/merges/1", "ab zz"), "merges[1]: the token \"zz\" is not in"},
      {changed("/model/merges/1", "a b c"), "merges[1]: wanted \"left right\""},
      {changed("/model/merges/1", 3), "merges[1]: wanted \"left right\""},
      {changed("/added_tokens/0", added_token(1, "x y")), "added_tokens[0]: the id 1"},
      {changed("/added_tokens/0", added_token(999999999, "x")), "wanted an id from 0"},
      {changed("/normalizer", {{"type", "Nmt"}}), "the normalizer Nmt is not supported, only NFC"},
      {changed("/normalizer", {{"type", "Prepend"}}), "normalizer: wanted a key prepend"},
      {changed("/pre_tokenizer", {{"type", "UnicodeScripts"}}),
       "the pre-tokenizer UnicodeScripts is not supported, only BertPreTokenizer, ByteLevel"},
      {changed("/pre_tokenizer", {{"type", "Metaspace"}, {"prepend_scheme", "last"}}),
       "pre_tokenizer.prepend_scheme: wanted always, first or never, got last"},
      {changed("/pre_tokenizer",
               {{"type", "Sequence"},
                {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Metaspace"}}}}}),
       "pretokenizers[1]: Metaspace after ByteLevel is not supported"},
      {changed("/decoder", {{"type", "WordPiece"}}), "got WordPiece"},
      {changed("/post_processor", {{"type", "BertProcessing"}}),
       "post_processor: wanted a key cls"},
      {changed("/post_processor", {{"type", "BertProcessing"}, {"cls", {"x"}}}),
       "post_processor.cls: wanted a token and its id"},
      {changed("/post_processor", {{"type", "Other"}}), "the post-processor Other"},
      {R"({"model": {"vocab": {"a": 0, "a": 1}, "merges": []}})", "\"a\" is repeated"},
      {R"({"model": {}, "model": {}})", "model is repeated"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_NE(error_of(text).find(message), std::string::npos)
        << "wanted " << message << ", got " << error_of(text);
  }
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) {
      bits = bits << 8U | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : 0U);
    }
    for (size_t j = 0; j < 4; ++j) {
      out += i + j > bytes.size() ? '=' : kDigits[bits >> (18U - 6U * j) & 63U];
    }
  }
  return out;
}

std::string tiny_ranks() {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    text += base64(std::string_view(&c, 1)) + " " + std::to_string(byte) + "\n";
  }
  return text + base64("bc") + " 256\n" + base64("ab") + " 257\n" + base64("abc") + " 258\n";
}

TEST(Tiktoken, MergesByRankWithLlama3SpecialTokens) {
  const auto tokenizer = parse_tiktoken(tiny_ranks(), "t.model");
  EXPECT_EQ(encode(*tokenizer, "abc xabc"), (Ids{258, ' ', 'x', 258}));
  EXPECT_EQ(encode(*tokenizer, "abab bcbc"), (Ids{257, 257, ' ', 256, 256}));
  EXPECT_EQ(tokenizer->vocab_size(), 259 + 256);
  EXPECT_EQ(tokenizer->bos(), 259);
  EXPECT_EQ(tokenizer->eos(), 260);
  EXPECT_EQ(encode(*tokenizer, "<|eot_id|>a<|reserved_special_token_5|>"),
            (Ids{259 + 9, 'a', 259 + 10}));
  EXPECT_EQ(tokenizer->decode(Ids{259 + 255}), "<|reserved_special_token_250|>");
}

Json tiny_tekken() {
  Json vocab = Json::array();
  const auto add = [&vocab](const std::string& bytes) {
    vocab.push_back(
        {{"rank", vocab.size()}, {"token_bytes", base64(bytes)}, {"token_str", nullptr}});
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const char* token : {"ab", "bc", "abc", "cc"}) add(token);
  return {{"config",
           {{"pattern", "\\p{L}+|\\P{L}"},
            {"default_vocab_size", 282},
            {"default_num_special_tokens", 23},
            {"version", "v3"}}},
          {"vocab", vocab}};
}

TEST(Tekken, RanksFollowTheSpecialTokens) {
  const auto tokenizer = parse_tekken(tiny_tekken().dump(), "tekken.json");
  EXPECT_EQ(encode(*tokenizer, "abc bc!"), (Ids{23 + 258, 23 + ' ', 23 + 257, 23 + '!'}));
  EXPECT_EQ(encode(*tokenizer, "cc"), (Ids{23 + 'c', 23 + 'c'})) << "a token beyond the vocabulary";
  EXPECT_EQ(encode(*tokenizer, "<s>").size(), 3U);
  EXPECT_EQ(tokenizer->vocab_size(), 282);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->decode(Ids{3, 23 + 256, 22}), "[INST]ab<SPECIAL_22>");
  Json named = tiny_tekken();
  named["special_tokens"] =
      Json::array({{{"rank", 5}, {"token_str", "</s>"}, {"is_control", true}}});
  EXPECT_EQ(parse_tekken(named.dump(), "t")->eos(), 5);
  EXPECT_FALSE(parse_tekken(named.dump(), "t")->bos().has_value());
}

TEST(Tekken, RefusesBadFilesByPlace) {
  const auto error_with = [](const char* place, const Json& value) -> std::string {
    Json json = tiny_tekken();
    json[Json::json_pointer(place)] = value;
    try {
      parse_tekken(json.dump(), "tekken.json");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const std::pair<std::string, std::string> cases[] = {
      {error_with("/vocab/3/token_bytes", "!"), "tekken.json: vocab[3].token_bytes: wanted base64"},
      {error_with("/vocab/3/rank", 4), "vocab[4]: the token or its rank 4 is repeated"},
      {error_with("/vocab/3/rank", 400), "wanted 259 tokens"},
      {error_with("/config/default_vocab_size", -1), "config.default_vocab_size: wanted a number"},
      {error_with("/config/default_num_special_tokens", 283), "wanted a number from 0 to 282"},
      {error_with("/special_tokens", Json::array({{{"rank", 23}, {"token_str", "x"}}})),
       "special_tokens[0]: wanted a rank below 23, got 23"},
      {error_with("/config/pattern", "("), "config.pattern: cannot parse the pattern"},
      {error_with("/config", 3), "config: wanted an object"},
  };
  for (const auto& [error, part] : cases)
    EXPECT_NE(error.find(part), std::string::npos) << error << "\nwanted " << part;
}

TEST(LoadTokenizer, RefusesOtherEndsThanThoseOfAModelFile) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "tokamak_model_and_config";
  std::filesystem::remove_all(folder);
  make_folders(folder);
  write_file_atomic(folder / "tokenizer.model", tiny_ranks());
  write_file_atomic(folder / "tokenizer_config.json", R"({"eos_token": "<|end_of_text|>"})");
  EXPECT_EQ(load_tokenizer(folder)->eos(), 260);
  write_file_atomic(folder / "tokenizer_config.json", R"({"eos_token": "<|eot_id|>"})");
  try {
    load_tokenizer(folder);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("eos_token is \"<|eot_id|>\", but that of the model"),
              std::string::npos)
        << error.what();
  }
}

TEST(Tiktoken, RefusesBadLinesByNumber) {
  const std::pair<std::string, std::string> cases[] = {
      {tiny_ranks() + "!!!! 259\n", "t.model: line 260"},
      {tiny_ranks() + "YWJj 300\n", "t.model: line 260: the token or its rank 300 is repeated"},
      {tiny_ranks() + "YWJjZA==\n", "t.model: line 260"},
      {tiny_ranks() + "YWJjZA== 99999999999\n", "t.model: line 260: wanted a rank"},
      {tiny_ranks().substr(0, 700), "t.model: "},
      {"\n\x0E\n\x05<unk>", "SentencePiece"},
  };
  for (const auto& [text, message] : cases) {
    try {
      parse_tiktoken(text, "t.model");
      ADD_FAILURE() << "no error, wanted " << message;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace tokamak
