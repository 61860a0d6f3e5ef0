#include "tokamak/core/chunk_hash.h"

#include <xxhash.h>

namespace tokamak {

uint64_t hash_of(std::span<const std::byte> bytes) {
  return XXH64(bytes.data(), bytes.size(), 0);
}

}  // namespace tokamak
