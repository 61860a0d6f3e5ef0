// The `self` dataset and its tokenizer, which are part of the program.
#pragma once

#include <memory>

#include "tokamak/data/token_source.h"
#include "tokamak/tokenizer/tokenizer.h"
#include "tokamak/tokenizer/train_bpe.h"

namespace tokamak {

/// Returns the tokenizer of dataset `self`: byte-level BPE of at most 2,048 ids, learned from the
/// same text when the program was built.
std::unique_ptr<Tokenizer> self_tokenizer();

/// Returns the same tokenizer as files, for exports.
TokenizerFiles self_tokenizer_files();

/// Returns the tokens of dataset `self`; the next epoch's beginning follows the tail of each epoch.
std::unique_ptr<TokenSource> self_tokens();

}  // namespace tokamak
