#include "tokamak/data/synthetic.h"

#include <limits>

#include "tokamak/core/random.h"

namespace tokamak {
namespace {

class SyntheticTokens final : public TokenSource {
 public:
  SyntheticTokens(uint64_t seed, int64_t vocab_size)
      : seed_(seed), vocab_size_(static_cast<uint64_t>(vocab_size)) {}

  int64_t wait_for(int64_t, const std::stop_token&) override { return kEndless; }

  std::optional<int64_t> size() override { return kEndless; }

  void read(int64_t first, std::span<int32_t> out) override {
    auto element = static_cast<uint64_t>(first);
    std::array<uint32_t, 4> words = philox(seed_, element / 4, kStream);
    for (int32_t& id : out) {
      if (element % 4 == 0) words = philox(seed_, element / 4, kStream);
      id = static_cast<int32_t>(words[element % 4] * vocab_size_ >> 32U);
      ++element;
    }
  }

  std::string describe(int64_t index, int32_t) override {
    return "synthetic: token " + std::to_string(index);
  }

  bool carries_tail() const override { return false; }

  const std::string& name() const override { return name_; }

  uint64_t hash() const override { return random_u64(seed_, kStream, vocab_size_); }

 private:
  static constexpr int64_t kEndless = std::numeric_limits<int64_t>::max() / 2;
  static constexpr uint64_t kStream = stream_of("data.synthetic");

  std::string name_ = "synthetic";
  uint64_t seed_;
  uint64_t vocab_size_;
};

}  // namespace

std::unique_ptr<TokenSource> synthetic_tokens(uint64_t seed, int64_t vocab_size) {
  return std::make_unique<SyntheticTokens>(seed, vocab_size);
}

}  // namespace tokamak
