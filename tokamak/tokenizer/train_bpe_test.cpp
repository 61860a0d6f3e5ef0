#include "tokamak/tokenizer/train_bpe.h"

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/core/json.h"
#include "tokamak/core/random.h"

namespace tokamak {
namespace {

std::string random_text(size_t words) {
  std::string text;
  for (uint64_t i = 0; i < words; ++i) {
    const uint32_t word = random_u32(5, 0, i) % 300;
    for (uint32_t j = 0; j < 2 + word % 7; ++j) {
      text += static_cast<char>('a' + random_u32(6, word, j) % 26);
    }
    text += i % 11 == 0 ? ".\n" : " ";
  }
  return text;
}

TEST(TrainBpe, JoinsTheMostFrequentPairTiesBySmallerIds) {
  const std::string_view text = "abab abab cdcd cdcd xy";
  const TokenizerFiles files =
      train_bpe({&text, 1}, {.vocab_size = 300, .special_tokens = {}, .bos = "", .eos = ""});
  const Json merges = parse_json(files.tokenizer_json, "test")["model"]["merges"];
  const Json expected = parse_json(
      R"([["a", "b"], ["c", "d"], ["\u0120", "cd"], ["ab", "ab"], ["\u0120cd", "cd"]])", "test");
  EXPECT_EQ(merges, expected);
  EXPECT_FALSE(files.parse("test")->bos().has_value());
}

TEST(TrainBpe, GivesATokenizerThatReadsItsText) {
  const std::string text = random_text(20000);
  const std::string_view documents[] = {text};
  for (const SplitRule split : {SplitRule::kGpt2, SplitRule::kLlama3}) {
    const TokenizerFiles files = train_bpe(documents, {.vocab_size = 1000, .split = split});
    EXPECT_EQ(files.tokenizer_json,
              train_bpe(documents, {.vocab_size = 1000, .split = split}).tokenizer_json);
    const auto tokenizer = files.parse("test");
    EXPECT_EQ(tokenizer->bos(), 0);
    EXPECT_EQ(tokenizer->eos(), 1);
    EXPECT_LE(tokenizer->vocab_size(), 1000);
    std::vector<int32_t> ids;
    tokenizer->encode(text, ids);
    EXPECT_EQ(tokenizer->decode(ids), text);
    EXPECT_LT(ids.size(), text.size() / 3);
  }
}

TEST(TrainBpe, CutsEndlessWords) {
  const std::string text(1 << 20, 'a');
  const std::string_view documents[] = {text};
  EXPECT_EQ(train_bpe(documents, {.vocab_size = 300}).parse("test")->vocab_size(), 267);
}

TEST(TrainBpe, RefusesWhatCannotBe) {
  EXPECT_THROW(BpeTrainer({.vocab_size = 257}), Error);
  EXPECT_THROW(BpeTrainer({.bos = "<s>"}), Error);
}

}  // namespace
}  // namespace tokamak
