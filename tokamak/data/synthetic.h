// The `synthetic` dataset: uniform ids, a pure function of (seed, position).
#pragma once

#include <memory>

#include "tokamak/data/token_source.h"

namespace tokamak {

/// An endless source of ids below `vocab_size`.
std::unique_ptr<TokenSource> synthetic_tokens(uint64_t seed, int64_t vocab_size);

}  // namespace tokamak
