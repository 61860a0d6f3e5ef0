#include "tokamak/train/sampling.h"

#include <cmath>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "tokamak/tokenizer/tokenizer.h"
#include "tokamak/train/generated_text.h"

namespace tokamak {
namespace {

// How often each id is drawn from `logits`.
std::map<int32_t, int> counts(const std::vector<float>& logits, const SamplingOptions& options) {
  std::map<int32_t, int> drawn;
  for (int64_t i = 0; i < 4000; ++i) ++drawn[sample(logits, options, i)];
  return drawn;
}

// Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625.
std::vector<float> halves() {
  std::vector<float> logits;
  for (const float p : {0.125F, 0.5F, 0.0625F, 0.25F, 0.0625F}) logits.push_back(std::log(p));
  return logits;
}

TEST(Sampling, DrawsByProbability) {
  const auto drawn = counts(halves(), {.seed = 3});
  ASSERT_EQ(drawn.size(), 5U);
  EXPECT_NEAR(drawn.at(1), 2000, 150);
  EXPECT_NEAR(drawn.at(3), 1000, 120);
  EXPECT_NEAR(drawn.at(2), 250, 60);
}

TEST(Sampling, TopKAndTopPCutTheTail) {
  const auto two = counts(halves(), {.top_k = 2});
  ASSERT_EQ(two.size(), 2U);
  EXPECT_NEAR(two.at(1), 2667, 150);
  EXPECT_EQ(counts(halves(), {.top_p = 0.5}).size(), 1U);
  const auto nucleus = counts(halves(), {.top_p = 0.8});  // 0.5 + 0.25 < 0.8 <= 0.875
  ASSERT_EQ(nucleus.size(), 3U);
  EXPECT_NEAR(nucleus.at(1), 4000.0 * 0.5 / 0.875, 150);
  EXPECT_EQ(counts(halves(), {.top_k = 4, .top_p = 0.95}).size(), 4U);  // of 0.9375: 0.8906
  EXPECT_EQ(counts(halves(), {.top_k = 4, .top_p = 0.9}).size(), 3U);
}

TEST(Sampling, ANucleusOfALargeVocabularyIsThatOfASort) {
  std::vector<float> logits(5000);
  for (size_t i = 0; i < logits.size(); ++i)
    logits[i] = -static_cast<float>((7 * i) % 5000) / 700.0F;
  // The most likely ids are multiples in a known order, so the nucleus is a prefix of it.
  double total = 0.0;
  for (const float x : logits) total += std::exp(static_cast<double>(x));
  double sum = 0.0;
  int64_t kept = 0;
  for (; sum < 0.6 * total; ++kept) sum += std::exp(-static_cast<double>(kept) / 700.0);
  for (int64_t i = 0; i < 500; ++i) {
    const int64_t place = (7 * sample(logits, {.top_p = 0.6}, i)) % 5000;
    EXPECT_LT(place, kept);
  }
}

TEST(Sampling, GreedyTakesTheFirstOfTheMostLikely) {
  EXPECT_EQ(sample(std::vector<float>{1.0F, 3.0F, 3.0F}, {.temperature = 0.0}, 0), 1);
}

std::string made(const std::vector<std::string>& stops, const std::string& text, bool& stopped) {
  const auto tokenizer = byte_tokenizer();
  GeneratedText out(*tokenizer, {}, stops);
  std::string all;
  for (const char c : text) {
    all += out.add(static_cast<uint8_t>(c));
    if (out.is_stopped()) break;
  }
  stopped = out.is_stopped();
  return all + out.rest();
}

TEST(GeneratedText, EndsBeforeTheFirstStop) {
  bool stopped = false;
  EXPECT_EQ(made({"\n\n", "END"}, "one\ntwo END three", stopped), "one\ntwo ");
  EXPECT_TRUE(stopped);
  EXPECT_EQ(made({"END"}, "one EN and E", stopped), "one EN and E");
  EXPECT_FALSE(stopped);
}

TEST(GeneratedText, HoldsBackWhatMayBeginAStop) {
  const auto tokenizer = byte_tokenizer();
  GeneratedText out(*tokenizer, {}, {"abc"});
  EXPECT_EQ(out.add('x'), "x");
  EXPECT_EQ(out.add('a'), "");
  EXPECT_EQ(out.add('b'), "");
  EXPECT_EQ(out.add('d'), "abd");
  EXPECT_EQ(out.add('a'), "");
  EXPECT_EQ(out.rest(), "a");
}

TEST(GeneratedText, LongTextsAreWhole) {
  bool stopped = false;
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>('a' + i % 26);
  EXPECT_EQ(made({}, text, stopped), text);
}

}  // namespace
}  // namespace tokamak
