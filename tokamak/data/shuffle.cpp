#include "tokamak/data/shuffle.h"

#include <bit>

#include "tokamak/core/random.h"

namespace tokamak {
namespace {

constexpr uint32_t kRounds = 8;

uint64_t feistel(uint64_t seed, uint64_t stream, uint32_t half_bits, uint64_t x) {
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = x >> half_bits;
  uint64_t right = x & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t mixed = left ^ (random_u64(seed, stream, right * kRounds + round) & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits) | right;
}

}  // namespace

int64_t shuffled(uint64_t seed, uint64_t epoch, int64_t n, int64_t index) {
  if (n <= 1) return 0;
  const auto bits = static_cast<uint32_t>(std::bit_width(static_cast<uint64_t>(n - 1)));
  const uint32_t half_bits = (bits + 1) / 2;
  const uint64_t stream = stream_of("data.shuffle") + epoch;
  auto x = static_cast<uint64_t>(index);
  do {
    x = feistel(seed, stream, half_bits, x);
  } while (x >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(x);
}

}  // namespace tokamak
