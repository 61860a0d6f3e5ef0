#include "tokamak/data/self/self.h"

#include "tokamak/data/loader.h"
#include "tokamak/data/self/self_corpus.h"
#include "tokamak/data/test_files.h"

namespace tokamak {
namespace {

TEST(SelfCorpus, PacksAndUnpacks) {
  const SelfCorpus corpus{.tokenizer_json = "{\"model\": {}}",
                          .tokenizer_config = "{}",
                          .tokens = {1, 2, 3, 65535},
                          .num_documents = 2};
  const std::string packed = pack_self_corpus(corpus);
  const SelfCorpus back = unpack_self_corpus(std::as_bytes(std::span(packed)));
  EXPECT_EQ(back.tokenizer_json, corpus.tokenizer_json);
  EXPECT_EQ(back.tokenizer_config, corpus.tokenizer_config);
  EXPECT_EQ(back.tokens, corpus.tokens);
  EXPECT_EQ(back.num_documents, 2);
}

TEST(Self, IsTheRepositorysText) {
  const auto tokenizer = self_tokenizer();
  EXPECT_LE(tokenizer->vocab_size(), 2048);
  const auto source = self_tokens();
  ASSERT_GT(source->size().value(), 10'000);
  std::vector<int32_t> ids(*source->size());
  source->read(0, ids);
  EXPECT_EQ(ids.front(), tokenizer->bos());
  EXPECT_EQ(ids.back(), tokenizer->eos());
  EXPECT_NE(tokenizer->decode(ids).find("namespace tokamak {"), std::string::npos);
}

TEST(Self, TrainsWithoutPathOrTokenizer) {
  Loader loader({.dataset = "self", .seq_len = 128, .global_batch_size = 4, .vocab_size = 2048});
  EXPECT_EQ(loader.next().valid_rows, 4);
}

}  // namespace
}  // namespace tokamak
