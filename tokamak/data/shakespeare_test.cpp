#include "tokamak/data/shakespeare.h"

#include "tokamak/data/loader.h"
#include "tokamak/data/test_files.h"

namespace tokamak {
namespace {

TEST(Shakespeare, IsOneDocumentOfTheText) {
  const auto tokenizer = shakespeare_tokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 2048);
  const auto source = shakespeare_tokens();
  std::vector<int32_t> ids(source->size().value());
  source->read(0, ids);
  EXPECT_EQ(ids.front(), tokenizer->bos());
  EXPECT_EQ(ids.back(), tokenizer->eos());
  ids = {ids.begin() + 1, ids.end() - 1};
  EXPECT_EQ(tokenizer->decode(ids), read_file(TOK_SOURCE_DIR "/data/shakespeare.txt"));
}

TEST(Shakespeare, TrainsWithoutPathOrTokenizer) {
  Loader loader(
      {.dataset = "shakespeare", .seq_len = 128, .global_batch_size = 4, .vocab_size = 2048});
  EXPECT_EQ(loader.next().valid_rows, 4);
}

}  // namespace
}  // namespace tokamak
