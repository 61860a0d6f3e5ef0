// Stochastic rounding of optimizer state to bfloat16: which random bits round which element
// (docs/numerics.md). They depend on the seed, the step, the tensor's name and the element's place
// in the whole tensor, so that every mesh and every backend rounds alike.
#pragma once

#include <cstdint>

namespace tokamak {

/// Where elements of a range lie in their whole row-major tensor: element i is element first + k /
/// width * pitch + k % width, with k = at + i. The range is a part of a box whose rows have `width`
/// neighbours, `pitch` apart.
struct ElementPlaces {
  int64_t first = 0;
  int64_t at = 0;
  int64_t width = int64_t{1} << 62U;
  int64_t pitch = 0;

  bool operator==(const ElementPlaces&) const = default;

  constexpr int64_t operator()(int64_t i) const {
    const int64_t k = at + i;
    return k < width ? first + k : first + k / width * pitch + k % width;
  }

  /// Returns how many elements from i on are neighbours.
  constexpr int64_t run(int64_t i) const { return width - (at + i) % width; }
};

/// Returns the counter of the four words philox(seed, counter, stream_of(name)) that round the
/// elements 4 k to 4 k + 3 around `element` in a step. REQUIRES: element < 2^36, step < 2^30.
constexpr uint64_t rounding_counter(int64_t step, int64_t element) {
  return (static_cast<uint64_t>(step) << 34U) | static_cast<uint64_t>(element / 4);
}

/// Returns the bits of the bfloat16 below or above a float, in magnitude. `random` is uniform in
/// [0, 2^16): then the mean is the float itself, exactly. Infinities stay; there are no NaNs.
constexpr uint16_t round_stochastically(uint32_t float_bits, uint32_t random) {
  return static_cast<uint16_t>((float_bits + random) >> 16U);
}

}  // namespace tokamak
