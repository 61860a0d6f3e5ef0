// Finds the tokens that open and close a document in the small files beside tokenizer.json.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "tokamak/tokenizer/tokenizer.h"

namespace tokamak {

struct DocumentEnds {
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
};

/// Looks in this order: tokenizer_config.json, special_tokens_map.json (where null means none), the
/// tokens that the post-processor adds, well-known names. `id_of` returns -1 for unknown tokens,
/// which count as none.
DocumentEnds find_document_ends(const TokenizerSideFiles& side, std::string_view name,
                                const DocumentEnds& added_by_post_processor,
                                const std::function<int32_t(std::string_view)>& id_of);

}  // namespace tokamak
