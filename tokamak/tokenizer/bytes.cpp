#include "tokamak/core/error.h"
#include "tokamak/core/random.h"
#include "tokamak/tokenizer/tokenizer.h"

namespace tokamak {
namespace {

constexpr int32_t kBos = 256;
constexpr int32_t kEos = 257;

class ByteTokenizer final : public Tokenizer {
 public:
  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    ids.reserve(ids.size() + text.size());
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string out;
    out.reserve(ids.size());
    for (const int32_t id : ids) {
      TOK_REQUIRE(id >= 0 && id <= kEos, "bytes: wanted a token id below {}, got {}", kEos + 1, id);
      if (id < kBos) out.push_back(static_cast<char>(id));
    }
    return out;
  }

  int64_t vocab_size() const override { return kEos + 1; }

  std::optional<int32_t> bos() const override { return kBos; }

  std::optional<int32_t> eos() const override { return kEos; }

  uint64_t hash() const override { return stream_of("tokenizer bytes 1"); }
};

}  // namespace

std::unique_ptr<Tokenizer> byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

}  // namespace tokamak
