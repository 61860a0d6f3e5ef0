// What the GPU's attention of one query per sample over a cache shares with its rules.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace tokamak {

inline constexpr std::string_view kDecodeVariant = "decode";
inline constexpr int kMostDecodeSplits = 64;

/// Returns into how many parts the `T` keys of a head are split, each for a block of its own.
inline int decode_splits(int64_t T) {
  return static_cast<int>(std::clamp<int64_t>((T + 31) / 32, 1, kMostDecodeSplits));
}

}  // namespace tokamak
