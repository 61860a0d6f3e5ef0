// Dropout whose mask is a pure function of (seed, stream, sample, element): the same on any mesh,
// with any microbatching, and when recomputed.
#pragma once

#include "tokamak/core/random.h"
#include "tokamak/ops/rules.h"

namespace tokamak {

/// The key of one dropout site's random numbers.
constexpr uint64_t dropout_key(uint64_t seed, uint64_t stream) {
  const auto word = philox(seed, stream, stream_of("dropout"));
  return (uint64_t{word[1]} << 32U) | word[0];
}

/// Returns the least word that is kept: to_uniform(word) >= p. REQUIRES: 0 <= p < 1.
constexpr uint32_t dropout_threshold(double p) {
  auto word = static_cast<uint32_t>(p * 0x1p32);
  while (word > 0 && to_uniform(word - 1) >= p) --word;
  while (to_uniform(word) < p && word < UINT32_MAX) ++word;
  return word;
}

/// Whether element `e` of sample `row` is kept.
constexpr bool dropout_keeps(uint64_t key, uint32_t threshold, uint64_t row, uint64_t e) {
  return philox(key, e / 4, row)[e % 4] >= threshold;
}

/// y = x / (1 - p) where kept, else 0; inputs x [B, ..], rows i64 [B]: each sample's index in the
/// run, which no two steps share. Elements are counted within a sample; with a
/// third input, positions i32 [B, S] of x [B, S, D], element (s, d) counts as positions[s] *
/// columns + first_column + d, so that a mask does not depend on how a sample is cut. y may take
/// the storage of x.
struct Dropout {
  static constexpr std::string_view kName = "dropout";
  double p = 0.0;
  uint64_t seed = 0;
  uint64_t stream = 0;       ///< differs between the sites of a model
  int64_t columns = 0;       ///< of the whole x; 0: all that x has
  int64_t first_column = 0;  ///< of this shard

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, int32_t self, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0}}; }

  std::optional<AnyOp> localize(const LocalContext& context) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
