// The `self` dataset and its tokenizer, which are part of the program.
#pragma once

#include <memory>

#include "tokamak/data/token_source.h"
#include "tokamak/tokenizer/tokenizer.h"
#include "tokamak/tokenizer/train_bpe.h"

namespace tokamak {

/// The tokenizer of dataset `self`: byte-level BPE of at most 2,048 ids, learned from the same text
/// when the program was built.
std::unique_ptr<Tokenizer> self_tokenizer();

/// The same as files, for exports.
TokenizerFiles self_tokenizer_files();

/// The tokens of dataset `self`; the tail of one epoch is followed by the beginning of the next.
std::unique_ptr<TokenSource> self_tokens();

}  // namespace tokamak
