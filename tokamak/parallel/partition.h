// Which rank holds which part of a dim that a mesh axis cuts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tokamak/graph/placement.h"

namespace tokamak {

/// The range of the dim for each coordinate on the axis. Ranges are in order and cover the dim;
/// neighbours may share one range (replicas), else ranges do not overlap.
using Ranges = std::vector<Range>;

/// Splits `extent` into `n` ranges that differ by at most one unit, the larger ones first. A unit
/// has `unit` elements; the last may have fewer. REQUIRES: at least n units.
Ranges split_evenly(int64_t extent, int n, int64_t unit);

/// Does the same with the greatest of the units 128, 64, .. 1 that keeps ranges within an eighth of
/// each other; ranges are equal where n divides the extent.
Ranges split_aligned(int64_t extent, int n);

/// The query heads and the key-value heads of each tensor-parallel rank, in heads. A rank's query
/// heads read only its own key-value heads, in groups of one size. With fewer key-value heads than
/// ranks, several ranks share one and split its query heads. REQUIRES: n <= num_heads, num_heads a
/// multiple of num_kv_heads.
struct HeadRanges {
  Ranges heads;
  Ranges kv_heads;
};

HeadRanges split_heads(int64_t num_heads, int64_t num_kv_heads, int n);

/// Returns the coordinates that hold the same range as `at`, itself included.
std::vector<int> replicas_of(const Ranges& ranges, int at);

/// The effect of one mesh axis on one value. Only cuts have ranges, in elements of the whole dim.
struct AxisPlacement {
  Shard shard = kReplicated;
  std::shared_ptr<const Ranges> ranges;

  bool operator==(const AxisPlacement& other) const {
    if (shard != other.shard) return false;
    return !shard.is_cut() || *ranges == *other.ranges;
  }
};

}  // namespace tokamak
