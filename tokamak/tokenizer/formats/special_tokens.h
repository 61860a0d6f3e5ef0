// Finds the special tokens that the small files next to a tokenizer name.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/tokenizer/added_tokens.h"
#include "tokamak/tokenizer/tokenizer.h"

namespace tokamak {

struct DocumentEnds {
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
};

struct SpecialTokens {
  /// Absent where the files do not say; empty where they say that there is none.
  std::optional<std::string> bos;
  std::optional<std::string> eos;
  /// All that are named, without ids, in the order in which transformers gives ids to those that
  /// tokenizer.json lacks.
  std::vector<AddedToken> all;
};

/// Reads tokenizer_config.json and, as transformers does, special_tokens_map.json before it and
/// added_tokens.json unless it has added_tokens_decoder. Throws Error naming the file and the key.
SpecialTokens read_special_tokens(const TokenizerSideFiles& side, std::string_view name);

/// Looks in this order: what the files name, the tokens that the post-processor adds, well-known
/// names. `id_of` returns -1 for unknown tokens, which count as none.
DocumentEnds find_document_ends(const SpecialTokens& named,
                                const DocumentEnds& added_by_post_processor,
                                const std::function<int32_t(std::string_view)>& id_of);

}  // namespace tokamak
