#include <filesystem>
#include <sstream>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/json.h"
#include "tokamak/tokenizer/tokenizer.h"

namespace tokamak {
namespace {

// Encodes and decodes every case of a file of JSON lines.
void expect_cases(const Tokenizer& tokenizer, const std::filesystem::path& file, int least) {
  std::istringstream lines(read_file(file));
  int cases = 0;
  int wrong = 0;
  for (std::string line; std::getline(lines, line); ++cases) {
    const Json expected = parse_json(line, file.string());
    const auto text = expected.at("text").get<std::string>();
    std::vector<int32_t> ids;
    tokenizer.encode(text, ids);
    const bool same = ids == expected.at("ids").get<std::vector<int32_t>>() &&
                      tokenizer.decode(ids) == expected.at("decoded").get<std::string>();
    if (!same && ++wrong < 5) ADD_FAILURE() << "case " << cases << ": " << line.substr(0, 200);
  }
  EXPECT_EQ(wrong, 0) << "of " << cases;
  EXPECT_GE(cases, least);
}

// Made by tools/compare_tokenizers.py with Hugging Face's tokenizers and SentencePiece.
class Oracle : public testing::TestWithParam<const char*> {};

TEST_P(Oracle, EveryCaseEncodesAndDecodesExactly) {
  const auto folder =
      std::filesystem::path(TOK_SOURCE_DIR) / "tests/oracles/tokenizers" / GetParam();
  expect_cases(*load_tokenizer(folder), folder / "cases.jsonl", 60);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Oracle,
                         testing::Values("gpt2_bpe", "llama3_bpe", "qwen2", "tekken",
                                         "nfkc_contiguous", "nfd_next", "nfkd_inverted",
                                         "llama2_legacy", "llama2_first", "metaspace_always",
                                         "metaspace_never", "gemma", "falcon", "whitespace",
                                         "bert_words", "unicode_words", "camel_case", "spm_llama2",
                                         "spm_squeezed", "spm_no_prefix"),
                         [](const auto& of) { return std::string(of.param); });

TEST(VocabAndMerges, GiveTheIdsOfTheirTokenizerJson) {
  const auto stored = std::filesystem::path(TOK_SOURCE_DIR) / "tests/oracles/tokenizers/qwen2";
  const Json whole = parse_json(read_file(stored / "tokenizer.json"), "tokenizer.json");
  const auto folder = std::filesystem::path(testing::TempDir()) / "tokamak_vocab_and_merges";
  std::filesystem::remove_all(folder);
  make_folders(folder);
  write_file_atomic(folder / "vocab.json", whole["model"]["vocab"].dump());
  std::string merges = "#version: 0.2\n";
  for (const Json& pair : whole["model"]["merges"])
    merges += pair[0].get<std::string>() + " " + pair[1].get<std::string>() + "\n";
  write_file_atomic(folder / "merges.txt", merges);
  Json config = {{"tokenizer_class", "Qwen2TokenizerFast"}, {"eos_token", "<|x|>"}};
  for (const Json& token : whole["added_tokens"])
    config["added_tokens_decoder"][token["id"].dump()] = token;
  write_file_atomic(folder / "tokenizer_config.json", config.dump());
  const auto tokenizer = load_tokenizer(folder);
  expect_cases(*tokenizer, stored / "cases.jsonl", 60);
  EXPECT_EQ(tokenizer->bos(), std::nullopt);
  EXPECT_EQ(tokenizer->eos(), whole["model"]["vocab"]["<|x|>"].get<int32_t>());
}

TEST(VocabAndMerges, AreGpt2sByDefault) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "tokamak_gpt2_vocab";
  std::filesystem::remove_all(folder);
  make_folders(folder);
  const std::string vocab = R"({"a": 0, "b": 1, "ab": 2, "\u0120": 3, "\u0120a": 4)";
  write_file_atomic(folder / "vocab.json", vocab + R"(, "<|endoftext|>": 5})");
  write_file_atomic(folder / "merges.txt", "#version: 0.2\r\na b\r\n\u0120 a\r\n");
  write_file_atomic(folder / "added_tokens.json", R"({"<new>": 7})");
  const auto encoded = [&] {
    std::vector<int32_t> ids;
    load_tokenizer(folder)->encode("ab a<|endoftext|><new>", ids);
    return ids;
  };
  EXPECT_EQ(encoded(), (std::vector<int32_t>{2, 4, 5, 7}));
  EXPECT_EQ(load_tokenizer(folder)->bos(), 5);
  EXPECT_EQ(load_tokenizer(folder)->eos(), 5);
  // A special token without an id gets the next one.
  write_file_atomic(folder / "vocab.json", vocab + "}");
  EXPECT_EQ(encoded(), (std::vector<int32_t>{2, 4, 8, 7}));
  const auto expect_refusal = [&](const std::string& message) {
    try {
      load_tokenizer(folder);
      ADD_FAILURE() << "no error, wanted " << message;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  };
  write_file_atomic(folder / "merges.txt", "a \x82\n");
  expect_refusal("merges[0]: the token \"\xEF\xBF\xBD\" is not in the vocabulary");
  write_file_atomic(folder / "tokenizer_config.json", R"({"tokenizer_class": "RobertaTokenizer"})");
  expect_refusal("tokenizer_class \"RobertaTokenizer\" is not");
}

}  // namespace
}  // namespace tokamak
