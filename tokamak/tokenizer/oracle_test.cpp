#include <filesystem>
#include <sstream>

#include <gtest/gtest.h>

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

class Oracle : public testing::TestWithParam<const char*> {};

TEST_P(Oracle, EveryCaseEncodesAndDecodesExactly) {
  const std::filesystem::path folder = TOK_SOURCE_DIR "/../shared/oracles/tokenizers";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent";
  const std::string stem = GetParam();
  expect_cases(*load_tokenizer(folder / (stem + ".tokenizer.json")),
               folder / (stem + ".cases.jsonl"), 1000);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Oracle, testing::Values("gpt2_bpe", "llama3_bpe"));

// Made by tools/compare_tokenizers.py with Hugging Face's tokenizers and SentencePiece.
class StoredOracle : public testing::TestWithParam<const char*> {};

TEST_P(StoredOracle, EveryCaseEncodesAndDecodesExactly) {
  const auto folder =
      std::filesystem::path(TOK_SOURCE_DIR) / "tests/oracles/tokenizers" / GetParam();
  expect_cases(*load_tokenizer(folder), folder / "cases.jsonl", 60);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, StoredOracle,
                         testing::Values("qwen2", "tekken", "nfkc_contiguous", "nfd_next",
                                         "nfkd_inverted", "llama2_legacy", "llama2_first",
                                         "metaspace_always", "metaspace_never", "gemma",
                                         "spm_llama2", "spm_squeezed", "spm_no_prefix"),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace
}  // namespace tokamak
