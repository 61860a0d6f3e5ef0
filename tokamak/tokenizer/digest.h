// The digest that keys token caches.
#pragma once

#include <cstdint>
#include <string_view>

namespace tokamak {

/// Returns the XXH3 hash of `bytes`, which is the same in every process and on every machine.
uint64_t digest(std::string_view bytes, uint64_t seed = 0);

}  // namespace tokamak
