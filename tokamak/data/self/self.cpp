#include "tokamak/data/self/self.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <xxhash.h>

#include "tokamak/data/self/self_blob.h"
#include "tokamak/data/self/self_corpus.h"

namespace tokamak {
namespace {

class SelfTokens final : public TokenSource {
 public:
  explicit SelfTokens(std::span<const std::byte> packed)
      : tokens_(unpack_self_corpus(packed).tokens),
        hash_(XXH3_64bits(packed.data(), packed.size())) {}

  int64_t wait_for(int64_t, const std::stop_token&) override { return count(); }

  std::optional<int64_t> size() override { return count(); }

  void read(int64_t first, std::span<int32_t> out) override {
    std::copy_n(tokens_.begin() + first, out.size(), out.begin());
  }

  std::string describe(int64_t index, int32_t id) override {
    return "self: token " + std::to_string(index) + ": id " + std::to_string(id);
  }

  bool carries_tail() const override { return true; }

  const std::string& name() const override { return name_; }

  uint64_t hash() const override { return hash_; }

 private:
  int64_t count() const { return static_cast<int64_t>(tokens_.size()); }

  std::string name_ = "self";
  std::vector<uint16_t> tokens_;
  uint64_t hash_;
};

}  // namespace

std::unique_ptr<Tokenizer> self_tokenizer() {
  return self_tokenizer_files().parse("the embedded tokenizer");
}

TokenizerFiles self_tokenizer_files() {
  SelfCorpus corpus = unpack_self_corpus(self_blob());
  return {.tokenizer_json = std::move(corpus.tokenizer_json),
          .tokenizer_config = std::move(corpus.tokenizer_config)};
}

std::unique_ptr<TokenSource> self_tokens() {
  return std::make_unique<SelfTokens>(self_blob());
}

}  // namespace tokamak
