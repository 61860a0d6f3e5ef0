// The bytes that the build put into the program.
#pragma once

#include <cstddef>
#include <span>

namespace tokamak {

/// Returns the packed corpus that self_corpus_main.cpp wrote.
std::span<const std::byte> self_blob();

}  // namespace tokamak
