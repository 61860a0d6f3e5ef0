#define XXH_INLINE_ALL
#include "tokamak/tokenizer/digest.h"

#include <xxhash.h>

namespace tokamak {

uint64_t digest(std::string_view bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace tokamak
