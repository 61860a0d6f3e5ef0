// The digest that keys token caches.
#pragma once

#include <cstdint>
#include <string_view>

namespace tokamak {

/// XXH3 of `bytes`: the same in every process and on every machine.
uint64_t digest(std::string_view bytes, uint64_t seed = 0);

}  // namespace tokamak
