// Writes of new keys or values into their cache.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

// B batch, T slots, S new tokens, K key-value heads, D head dim.

/// The cache with slots position .. position + S - 1 overwritten: inputs cache [B, T, K, D], new
/// [B, S, K, D], position i32 [1] or, where samples have places of their own, [B], read at each
/// run. The output is the cache's own storage. A run with position < 0 or position + S > T is a
/// Bug.
struct CacheAppend {
  static constexpr std::string_view kName = "cache_append";

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0, .must = true}}; }

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
