#include <filesystem>
#include <sstream>

#include <gtest/gtest.h>

#include "tokamak/core/file.h"
#include "tokamak/core/json.h"
#include "tokamak/tokenizer/tokenizer.h"

namespace tokamak {
namespace {

class Oracle : public testing::TestWithParam<const char*> {};

TEST_P(Oracle, EveryCaseEncodesAndDecodesExactly) {
  const std::filesystem::path folder = TOK_SOURCE_DIR "/../shared/oracles/tokenizers";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent";
  const std::string stem = GetParam();
  const auto tokenizer = load_tokenizer(folder / (stem + ".tokenizer.json"));
  std::istringstream lines(read_file(folder / (stem + ".cases.jsonl")));
  int cases = 0;
  int wrong = 0;
  for (std::string line; std::getline(lines, line); ++cases) {
    const Json expected = parse_json(line, stem);
    const auto text = expected.at("text").get<std::string>();
    std::vector<int32_t> ids;
    tokenizer->encode(text, ids);
    const bool same = ids == expected.at("ids").get<std::vector<int32_t>>() &&
                      tokenizer->decode(ids) == expected.at("decoded").get<std::string>();
    if (!same && ++wrong < 5) ADD_FAILURE() << "case " << cases << ": " << line.substr(0, 200);
  }
  EXPECT_EQ(wrong, 0) << "of " << cases;
  EXPECT_GT(cases, 1000);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Oracle, testing::Values("gpt2_bpe", "llama3_bpe"));

}  // namespace
}  // namespace tokamak
