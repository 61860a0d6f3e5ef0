// Helpers of the readers of tiktoken's and Mistral's files of ranks.
#pragma once

#include <string>
#include <string_view>

#include "tokamak/tokenizer/bpe.h"

namespace tokamak {

/// Replaces `bytes` by what `text` spells in base64; returns false if it spells nothing.
bool from_base64(std::string_view text, std::string& bytes);

/// Finishes a model whose ids are its ranks, up to a constant: adds a merge for every two tokens
/// whose concatenation is a token. Throws Error that begins with `name` if a byte is missing.
void finish_ranks(Bpe& bpe, std::string_view name);

}  // namespace tokamak
