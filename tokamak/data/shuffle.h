// A shuffle without memory: a permutation of [0, n) that can be asked at any place.
#pragma once

#include <cstdint>

namespace tokamak {

/// Place `index` of the permutation of [0, n) keyed by (seed, epoch): a Feistel network over the
/// next power of four, walked until it lands inside. REQUIRES: 0 <= index < n.
int64_t shuffled(uint64_t seed, uint64_t epoch, int64_t n, int64_t index);

}  // namespace tokamak
