#include "tokamak/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

TEST(ByteTokenizer, IdsAreBytes) {
  const auto tokenizer = byte_tokenizer();
  std::vector<int32_t> ids{*tokenizer->bos()};
  tokenizer->encode("a\xC3\xFF", ids);
  ids.push_back(*tokenizer->eos());
  EXPECT_EQ(ids, (std::vector<int32_t>{256, 97, 195, 255, 257}));
  EXPECT_EQ(tokenizer->decode(ids), "a\xC3\xFF");
  EXPECT_EQ(tokenizer->vocab_size(), 258);
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{258}), Error);
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{-1}), Error);
}

TEST(LoadTokenizer, NamesWhatIsMissing) {
  EXPECT_EQ(load_tokenizer("bytes")->vocab_size(), 258);
  EXPECT_THROW(load_tokenizer("/nonexistent/tokenizer"), Error);
}

}  // namespace
}  // namespace tokamak
