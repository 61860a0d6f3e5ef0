// xxHash64 of bytes that a disk, a link or memory may change: chunks of a file, so that damage is
// located and only the chunks in use need be checked, and messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tokamak {

/// Returns the hash of one chunk.
uint64_t hash_of(std::span<const std::byte> bytes);

}  // namespace tokamak
