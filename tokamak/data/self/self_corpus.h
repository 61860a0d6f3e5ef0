// The embedded default dataset is this repository's own text, tokenized at build time.
//
// Its packed form is zstd over kMagic, four u64 counts (bytes of tokenizer.json, bytes of
// tokenizer_config.json, tokens, documents), the two texts, then u16 ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tokamak {

struct SelfCorpus {
  std::string tokenizer_json;
  std::string tokenizer_config;
  /// All documents, each with its BOS and EOS.
  std::vector<uint16_t> tokens;
  int64_t num_documents = 0;
};

std::string pack_self_corpus(const SelfCorpus& corpus);

/// The inverse of pack_self_corpus(). A damaged corpus is a Bug, for it is part of the program.
SelfCorpus unpack_self_corpus(std::span<const std::byte> packed);

}  // namespace tokamak
