// The generator of core/random.h, many words at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tokamak::cpu {

inline constexpr int64_t kPhiloxWords = 128;

using PhiloxBlock = std::array<uint32_t, kPhiloxWords>;

/// words[4 i + j] = philox(key, counter_low + i, counter_high)[j].
inline void philox_block(uint64_t key, uint64_t counter_low, uint64_t counter_high,
                         PhiloxBlock& words) {
  constexpr size_t kLanes = kPhiloxWords / 4;
  std::array<uint32_t, kLanes> c0;
  std::array<uint32_t, kLanes> c1;
  std::array<uint32_t, kLanes> c2;
  std::array<uint32_t, kLanes> c3;
  for (size_t i = 0; i < kLanes; ++i) {
    c0[i] = static_cast<uint32_t>(counter_low + i);
    c1[i] = static_cast<uint32_t>((counter_low + i) >> 32U);
    c2[i] = static_cast<uint32_t>(counter_high);
    c3[i] = static_cast<uint32_t>(counter_high >> 32U);
  }
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32U);
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (size_t i = 0; i < kLanes; ++i) {
      const uint64_t p0 = uint64_t{0xD2511F53U} * c0[i];
      const uint64_t p1 = uint64_t{0xCD9E8D57U} * c2[i];
      c0[i] = static_cast<uint32_t>(p1 >> 32U) ^ c1[i] ^ k0;
      c1[i] = static_cast<uint32_t>(p1);
      c2[i] = static_cast<uint32_t>(p0 >> 32U) ^ c3[i] ^ k1;
      c3[i] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  for (size_t i = 0; i < kLanes; ++i) {
    words[4 * i] = c0[i];
    words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i];
    words[4 * i + 3] = c3[i];
  }
}

}  // namespace tokamak::cpu
