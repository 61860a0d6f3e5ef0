// The dataset `shakespeare` and its tokenizer, which are part of the program.
#pragma once

#include <memory>

#include "tokamak/data/token_source.h"
#include "tokamak/tokenizer/train_bpe.h"

namespace tokamak {

/// Returns the tokenizer of dataset `shakespeare` as files: byte-level BPE of 2,048 ids, trained on
/// the text in some 20 ms.
TokenizerFiles shakespeare_tokenizer_files();

/// Returns the same tokenizer.
std::unique_ptr<Tokenizer> shakespeare_tokenizer();

/// Returns the tokens of dataset `shakespeare`; the next epoch's beginning follows the tail of each
/// epoch.
std::unique_ptr<TokenSource> shakespeare_tokens();

}  // namespace tokamak
