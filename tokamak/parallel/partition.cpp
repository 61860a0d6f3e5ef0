#include "tokamak/parallel/partition.h"

#include <algorithm>

#include "tokamak/core/error.h"

namespace tokamak {

Ranges split_evenly(int64_t extent, int n, int64_t unit) {
  const int64_t units = (extent + unit - 1) / unit;
  TOK_CHECK(units >= n, "{} units for {} ranks", units, n);
  Ranges ranges;
  int64_t begin = 0;
  for (int64_t r = 0; r < n; ++r) {
    const int64_t end = begin + (units / n + (r < units % n ? 1 : 0)) * unit;
    ranges.push_back({.begin = begin, .end = std::min(end, extent)});
    begin = end;
  }
  return ranges;
}

Ranges split_aligned(int64_t extent, int n) {
  if (extent % n == 0) return split_evenly(extent, n, extent / n);
  int64_t unit = 128;
  while (unit > 1 && extent / n < 8 * unit) unit /= 2;
  return split_evenly(extent, n, unit);
}

HeadRanges split_heads(int64_t num_heads, int64_t num_kv_heads, int n) {
  const int64_t group = num_heads / num_kv_heads;
  HeadRanges split;
  if (num_kv_heads >= n) {
    split.kv_heads = split_evenly(num_kv_heads, n, 1);
    for (const Range& kv : split.kv_heads)
      split.heads.push_back({.begin = kv.begin * group, .end = kv.end * group});
    return split;
  }
  // Each key-value head gets some ranks, which split its group of query heads.
  const auto num = static_cast<int>(num_kv_heads);
  const Ranges ranks = split_evenly(n, num, 1);
  for (int64_t kv = 0; kv < num_kv_heads; ++kv) {
    const int sharers = static_cast<int>(ranks[kv].size());
    for (const Range& q : split_evenly(group, sharers, 1)) {
      split.kv_heads.push_back({.begin = kv, .end = kv + 1});
      split.heads.push_back({.begin = kv * group + q.begin, .end = kv * group + q.end});
    }
  }
  return split;
}

std::vector<int> replicas_of(const Ranges& ranges, int at) {
  std::vector<int> same;
  for (size_t r = 0; r < ranges.size(); ++r) {
    if (ranges[r] == ranges[at]) same.push_back(static_cast<int>(r));
  }
  return same;
}

}  // namespace tokamak
