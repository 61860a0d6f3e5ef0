#include "tokamak/data/shakespeare.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <xxhash.h>

#include "tokamak/core/embedded.h"

namespace tokamak {

std::span<const EmbeddedFile> shakespeare_files();

namespace {

std::string_view shakespeare_text() {
  return shakespeare_files().front().text;
}

class ShakespeareTokens final : public TokenSource {
 public:
  ShakespeareTokens() {
    const auto tokenizer = shakespeare_tokenizer();
    ids_.push_back(tokenizer->bos().value());
    tokenizer->encode(shakespeare_text(), ids_);
    ids_.push_back(tokenizer->eos().value());
  }

  int64_t wait_for(int64_t, const std::stop_token&) override { return count(); }

  std::optional<int64_t> size() override { return count(); }

  void read(int64_t first, std::span<int32_t> out) override {
    std::copy_n(ids_.begin() + first, out.size(), out.begin());
  }

  std::string describe(int64_t index, int32_t id) override {
    return name_ + ": token " + std::to_string(index) + ": id " + std::to_string(id);
  }

  bool carries_tail() const override { return true; }

  const std::string& name() const override { return name_; }

  uint64_t hash() const override {
    return XXH3_64bits(shakespeare_text().data(), shakespeare_text().size());
  }

 private:
  int64_t count() const { return static_cast<int64_t>(ids_.size()); }

  std::string name_ = "shakespeare";
  std::vector<int32_t> ids_;
};

}  // namespace

TokenizerFiles shakespeare_tokenizer_files() {
  constexpr int64_t kVocabSize = 2048;
  const std::string_view text = shakespeare_text();
  return train_bpe({&text, 1}, {.vocab_size = kVocabSize});
}

std::unique_ptr<Tokenizer> shakespeare_tokenizer() {
  return shakespeare_tokenizer_files().parse("the tokenizer of dataset shakespeare");
}

std::unique_ptr<TokenSource> shakespeare_tokens() {
  return std::make_unique<ShakespeareTokens>();
}

}  // namespace tokamak
