// xxHash64 over fixed chunks of a file, so that damage is located and only the chunks in use need
// be checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tokamak {

/// The hash of one chunk.
uint64_t hash_of(std::span<const std::byte> bytes);

}  // namespace tokamak
