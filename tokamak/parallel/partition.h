// Who holds which part of a dim that a mesh axis cuts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tokamak/graph/placement.h"

namespace tokamak {

/// By coordinate on the axis: its range of the dim. In order and covering the dim; neighbours may
/// share one range (replicas), else ranges do not overlap.
using Ranges = std::vector<Range>;

/// `extent` in `n` ranges that differ by at most one unit, the larger ones first; units of `unit`
/// elements but for the last one. REQUIRES: at least n units.
Ranges split_evenly(int64_t extent, int n, int64_t unit);

/// The same with the greatest of the units 128, 64, .. 1 that keeps ranges within an eighth of each
/// other; equal ranges where n divides the extent.
Ranges split_aligned(int64_t extent, int n);

/// What each tensor-parallel rank holds of query heads and of key-value heads, in heads. All of a
/// rank's query heads read its own key-value heads, in groups of one size. With fewer key-value
/// heads than ranks several ranks share one and split its query heads. REQUIRES: n <= num_heads,
/// num_heads a multiple of num_kv_heads.
struct HeadRanges {
  Ranges heads;
  Ranges kv_heads;
};

HeadRanges split_heads(int64_t num_heads, int64_t num_kv_heads, int n);

/// The coordinates that hold the same range as `at`, itself included.
std::vector<int> replicas_of(const Ranges& ranges, int at);

/// What one mesh axis does to one value. Ranges are in elements of the whole dim, for cuts only.
struct AxisPlacement {
  Shard shard = kReplicated;
  std::shared_ptr<const Ranges> ranges;

  bool operator==(const AxisPlacement& other) const {
    if (shard != other.shard) return false;
    return !shard.is_cut() || *ranges == *other.ranges;
  }
};

}  // namespace tokamak
