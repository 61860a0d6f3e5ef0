// Ranges of a flat tensor that a kernel's blocks share out, passed to it by value.
#pragma once

#include <vector>

#include "tokamak/gpu/dispatch.cuh"

namespace tokamak::gpu {

/// Elements [begin, end) and their value, for blocks from `first_block` on.
struct BlockRange {
  int64_t begin = 0;
  int64_t end = 0;
  double value = 0.0;
  int64_t first_block = 0;
};

/// The ranges that fit in a kernel's parameters on every device (4 KB). Range is a BlockRange or
/// begins as one.
template <class Range>
struct RangeGroup {
  static constexpr int kMost = static_cast<int>(3072 / sizeof(Range));
  Range all[kMost];
  int count = 0;

  /// Returns the index of `block`'s range. REQUIRES: block >= all[0].first_block; each range has
  /// blocks.
  __device__ int range_of(int64_t block) const {
    int low = 0;
    int high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (all[middle].first_block <= block ? low : high) = middle;
    }
    return low;
  }
};

using BlockRanges = RangeGroup<BlockRange>;

/// Gives each range count(range) blocks by setting its first one, and calls launch(ranges, first
/// block, blocks) for groups of at most kMost ranges. Ranges without a block are left out.
template <class Range, class Count, class Launch>
void for_range_groups(const std::vector<Range>& ranges, Count&& count, Launch&& launch) {
  int64_t blocks = 0;
  int64_t launched = 0;
  RangeGroup<Range> group;
  const auto flush = [&] {
    if (blocks > launched) launch(group, launched, blocks - launched);
    launched = blocks;
    group.count = 0;
  };
  for (Range range : ranges) {
    const int64_t n = count(range);
    if (n == 0) continue;
    if (group.count == group.kMost) flush();
    range.first_block = blocks;
    group.all[group.count++] = range;
    blocks += n;
  }
  flush();
}

}  // namespace tokamak::gpu
