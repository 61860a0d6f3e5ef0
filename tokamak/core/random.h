// Counter-based random numbers: a pure function of (seed, stream, element), so that a parameter, a
// dropout mask or a shuffle is the same on any mesh and any backend. Philox4x32-10: Salmon et al.,
// SC 2011.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tokamak {

/// Returns four 32-bit words for one (key, counter) pair.
constexpr std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low,
                                         uint64_t counter_high) {
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32U);
  std::array<uint32_t, 4> c{
      static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32U),
      static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32U)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53U} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57U} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32U) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32U) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return c;
}

/// Returns the stream of a name, which is the same in every build: FNV-1a with a final mix.
constexpr uint64_t stream_of(std::string_view name) {
  uint64_t h = 0xCBF29CE484222325U;
  for (const char c : name) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3U;
  h ^= h >> 32U;
  return h * 0x9E3779B97F4A7C15U;
}

/// Returns one 32-bit word for element `element` of `stream` under `seed`.
constexpr uint32_t random_u32(uint64_t seed, uint64_t stream, uint64_t element) {
  return philox(seed, element / 4, stream)[element % 4];
}

/// Returns 64 bits for one element, for shuffles and sampling.
constexpr uint64_t random_u64(uint64_t seed, uint64_t stream, uint64_t element) {
  const auto word = philox(seed, element, stream);
  return (uint64_t{word[1]} << 32U) | word[0];
}

/// Maps a word to (0, 1), never to an end point: (w + 1/2) / 2^32.
constexpr double to_uniform(uint32_t word) {
  return (static_cast<double>(word) + 0.5) * 0x1p-32;
}

/// Returns the quantile of the standard normal distribution. It uses fixed polynomials only
/// (Wichura, AS 241, with our own log), so that every platform gives the same bits.
/// REQUIRES: 0 < p < 1.
double normal_quantile(double p);

/// Returns P(Z < z) for the standard normal; used once per tensor for truncation bounds.
double normal_cdf(double z);

/// Maps a random word to an element of N(0, 1) truncated to [low, high] standard deviations.
struct TruncatedNormal {
  double p_low = 0.0;
  double p_high = 1.0;

  static TruncatedNormal between(double low, double high) {
    return {normal_cdf(low), normal_cdf(high)};
  }

  double operator()(uint32_t word) const {
    return normal_quantile(p_low + (p_high - p_low) * to_uniform(word));
  }
};

}  // namespace tokamak
