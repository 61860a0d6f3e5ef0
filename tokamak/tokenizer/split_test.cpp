#include "tokamak/tokenizer/split.h"

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/core/random.h"

namespace tokamak {
namespace {

using Words = std::vector<std::string>;

Words split_known(std::string_view text, int max_digits) {
  Words words;
  WordSplitter splitter(text, max_digits);
  for (auto word = splitter.next(); !word.empty(); word = splitter.next()) words.emplace_back(word);
  return words;
}

Words split_regex(std::string_view text, const RegexSplitter& splitter) {
  Words words;
  RegexSplitter::Match match;
  size_t done = 0;
  while (splitter.next(text, match)) {
    if (done < match.begin) words.emplace_back(text.substr(done, match.begin - done));
    words.emplace_back(text.substr(match.begin, match.end - match.begin));
    done = match.end;
  }
  if (done < text.size()) words.emplace_back(text.substr(done));
  return words;
}

TEST(WordSplitter, Llama3) {
  const std::pair<std::string_view, Words> cases[] = {
      {"", {}},
      {"I'm you'RE we'Ve", {"I", "'m", " you", "'RE", " we", "'Ve"}},
      {"'\u017F x'\u017Fs", {"'\u017F", " x", "'\u017F", "s"}},
      {"1234567 12", {"123", "456", "7", " ", "12"}},
      {"a  b \n\n c\t\td", {"a", " ", " b", " \n\n", " c", "\t", "\td"}},
      {" \r\n  ", {" \r\n", "  "}},
      {"x = {};\n\n}\n", {"x", " =", " {};\n\n", "}\n"}},
      {"e\u0301t\u00E9", {"e", "\u0301t\u00E9"}},
      {"\u3000\u65E5\u672C \u2167\u00B2", {"\u3000\u65E5\u672C", " ", "\u2167\u00B2"}},
      {"a\xFFz\xE2\x82", {"a", "\xFFz", "\xE2\x82"}},
  };
  for (const auto& [text, words] : cases) EXPECT_EQ(split_known(text, 3), words) << text;
}

TEST(WordSplitter, Gpt2) {
  const std::pair<std::string_view, Words> cases[] = {
      {"I'm you'RE", {"I", "'m", " you", "'", "RE"}},
      {"1234567 12", {"1234567", " 12"}},
      {"a  b \n\n c\t\td", {"a", " ", " b", " \n\n", " c", "\t", "\t", "d"}},
      {"x = {};\n\n}\n", {"x", " =", " {};", "\n", "\n", "}", "\n"}},
      {" \u00A0x  ", {" ", "\u00A0", "x", "  "}},
  };
  for (const auto& [text, words] : cases) EXPECT_EQ(split_known(text, 0), words) << text;
}

TEST(WordSplitter, AgreesWithThePatterns) {
  const std::string_view parts[] = {"a",      "Ze",     "\u00E9",     "\u65E5", "'",      "s",
                                    "LL",     "\u017F", "1",          "\u2167", " ",      "  ",
                                    "\n",     "\r\n",   "\t",         "\u3000", "\u0085", "\u180E",
                                    "\u0301", "!",      "\U0001F600", "-_",     "\u200B", "\u00B2"};
  const std::pair<std::string_view, int> rules[] = {
      {kGpt2Pattern, 0}, {kLlama3Pattern, 3}, {kQwen2Pattern, 1}};
  for (const auto& [pattern, max_digits] : rules) {
    const RegexSplitter regex(pattern, "test");
    for (uint64_t n = 0; n < 3000; ++n) {
      std::string text;
      for (uint64_t i = 0; i < 1 + n % 12; ++i) {
        text += parts[random_u32(1, n, i) % std::size(parts)];
      }
      ASSERT_EQ(split_known(text, max_digits), split_regex(text, regex)) << text;
    }
  }
}

// Words as `tokenizers.pre_tokenizers.Split` gives them, which matches by Oniguruma.
TEST(RegexSplitter, ReadsOnigurumasDialect) {
  const std::pair<std::string_view, std::pair<std::string_view, Words>> cases[] = {
      {"\\w+", {"e\u0301 \u2160\u24B6\u203F\u00B2", {"e\u0301", " ", "\u2160\u24B6\u203F\u00B2"}}},
      {"[\\w\\s]+", {"x\u200D\u0300 ab", {"x", "\u200D", "\u0300 ab"}}},
      {"\\b.", {"ab e\u0301c", {"a", "b", " ", "e", "\u0301c"}}},
      {"\\B.", {"abc d", {"a", "b", "c", " d"}}},
      {"\\h", {"a g", {"a", " g"}}},
      {"[\\u4e00-\\u9fff]", {"a\u6771b", {"a", "\u6771", "b"}}},
      {"\\p{Han}", {"\u3001\u3005", {"\u3001", "\u3005"}}},
      {"\\P{Han}+", {"\u6771\u3001a", {"\u6771", "\u3001a"}}},
      {"^.", {"ab\nab\n", {"a", "b\n", "a", "b\n"}}},
      {"a$", {"ba\nba\n", {"b", "a", "\nb", "a", "\n"}}},
      {"\\s+$", {"a  \nb ", {"a", "  ", "\nb", " "}}},
      {"[\\w-]+", {"a-\u00BD", {"a-", "\u00BD"}}},
      {"[]a]", {"a]b", {"a", "]", "b"}}},
      {"[^]a]", {"ab]", {"a", "b", "]"}}},
      {"[[:upper:]b]", {"abC", {"a", "b", "C"}}},
  };
  for (const auto& [pattern, text_and_words] : cases) {
    const auto& [text, words] = text_and_words;
    EXPECT_EQ(split_regex(text, RegexSplitter(pattern, "test")), words) << pattern;
  }
  EXPECT_THROW(RegexSplitter("[a[bc]]", "test"), Error);
  EXPECT_THROW(RegexSplitter("[\\p{L}&&[^a]]", "test"), Error);
}

TEST(RegexSplitter, TakesAnyBytesAndNamesBadPatterns) {
  const RegexSplitter words("\\s+|x*", "test");
  EXPECT_EQ(split_regex("a \xFF\u180E xx b", words),
            (Words{"a", " ", "\xFF\u180E", " ", "xx", " ", "b"}));
  EXPECT_THROW(RegexSplitter("(", "test"), Error);
  const std::string spaces(1 << 20, ' ');
  EXPECT_EQ(split_regex(spaces, RegexSplitter(kLlama3Pattern, "test")).size(), 1U);
}

}  // namespace
}  // namespace tokamak
