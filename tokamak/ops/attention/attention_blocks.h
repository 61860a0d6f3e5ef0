// The blocks that the fast attention kernels work in, and the workspace that these need.
#pragma once

#include "tokamak/ops/attention/attention.h"

namespace tokamak {

inline constexpr int64_t kQueryBlock = 64;
inline constexpr int64_t kKeyBlock = 64;

constexpr int64_t round_up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

/// The words of 4 bytes that a thread needs, whatever the element type. Keys are kept for one
/// key-value head at a time, in the layouts that the matmuls read.
struct AttentionWorkspace {
  int64_t keys = 0;     ///< one copy of the keys (or values, or a gradient of them) of a head
  int64_t queries = 0;  ///< one block of queries
  int64_t scores = kQueryBlock * kKeyBlock;
  int64_t rows = 32 * kQueryBlock;  ///< statistics of the queries of a block

  explicit AttentionWorkspace(const AttentionShape& s)
      : keys(round_up(s.T, kKeyBlock) * round_up(s.D, 16)),
        queries(kQueryBlock * round_up(s.D, 16)) {}

  int64_t forward() const { return 2 * keys + 3 * queries + 2 * scores + rows; }

  int64_t backward() const { return 5 * keys + 6 * queries + 5 * scores + rows; }
};

}  // namespace tokamak
