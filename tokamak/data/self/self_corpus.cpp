#include "tokamak/data/self/self_corpus.h"

#include <array>
#include <cstring>
#include <string_view>

#include <zstd.h>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

constexpr std::string_view kMagic = "TOKSELF1";
constexpr size_t kHeaderBytes = 8 + 4 * 8;
constexpr int kLevel = 19;

std::string unpacked(std::span<const std::byte> packed) {
  const auto size = ZSTD_getFrameContentSize(packed.data(), packed.size());
  TOK_CHECK(size != ZSTD_CONTENTSIZE_UNKNOWN && size != ZSTD_CONTENTSIZE_ERROR);
  std::string bytes(size, '\0');
  const size_t got = ZSTD_decompress(bytes.data(), bytes.size(), packed.data(), packed.size());
  TOK_CHECK(got == size, "embedded corpus: {}", ZSTD_getErrorName(got));
  return bytes;
}

}  // namespace

std::string pack_self_corpus(const SelfCorpus& corpus) {
  const std::array<uint64_t, 4> counts{corpus.tokenizer_json.size(), corpus.tokenizer_config.size(),
                                       corpus.tokens.size(),
                                       static_cast<uint64_t>(corpus.num_documents)};
  std::string bytes(kMagic);
  bytes.append(reinterpret_cast<const char*>(counts.data()), sizeof(counts));
  bytes += corpus.tokenizer_json + corpus.tokenizer_config;
  bytes.append(reinterpret_cast<const char*>(corpus.tokens.data()), corpus.tokens.size() * 2);
  std::string packed(ZSTD_compressBound(bytes.size()), '\0');
  const size_t size =
      ZSTD_compress(packed.data(), packed.size(), bytes.data(), bytes.size(), kLevel);
  TOK_CHECK(ZSTD_isError(size) == 0, "{}", ZSTD_getErrorName(size));
  packed.resize(size);
  return packed;
}

SelfCorpus unpack_self_corpus(std::span<const std::byte> packed) {
  const std::string bytes = unpacked(packed);
  TOK_CHECK(bytes.size() >= kHeaderBytes && bytes.starts_with(kMagic));
  std::array<uint64_t, 4> counts{};
  std::memcpy(counts.data(), bytes.data() + kMagic.size(), sizeof(counts));
  const size_t texts = kHeaderBytes + counts[0] + counts[1];
  TOK_CHECK(bytes.size() == texts + counts[2] * 2);
  SelfCorpus corpus;
  corpus.tokenizer_json = bytes.substr(kHeaderBytes, counts[0]);
  corpus.tokenizer_config = bytes.substr(kHeaderBytes + counts[0], counts[1]);
  corpus.tokens.resize(counts[2]);
  std::memcpy(corpus.tokens.data(), bytes.data() + texts, counts[2] * 2);
  corpus.num_documents = static_cast<int64_t>(counts[3]);
  return corpus;
}

}  // namespace tokamak
