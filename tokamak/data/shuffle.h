// A shuffle that needs no memory: a permutation of [0, n) that can be evaluated at any place.
#pragma once

#include <cstdint>

namespace tokamak {

/// Returns element `index` of the permutation of [0, n) keyed by (seed, epoch). A Feistel network
/// over the next power of four is iterated until it lands inside. REQUIRES: 0 <= index < n.
int64_t shuffled(uint64_t seed, uint64_t epoch, int64_t n, int64_t index);

}  // namespace tokamak
