// How a GPU sums the columns of a matrix [N, O]: rows are cut into groups that depend on the shape
// only, each group sums into its own row of the workspace, and the groups are added in order.
#pragma once

#include <algorithm>

#include "tokamak/ops/rules.h"

namespace tokamak {

/// Returns the number of columns that one warp reads with 16 bytes per lane.
constexpr int64_t column_strip(int64_t element_bytes) {
  return 32 * 16 / element_bytes;
}

/// Returns the number of row groups; group g is rows [N g / groups, N (g + 1) / groups). With the
/// strips they make at most two blocks on each of 132 multiprocessors, and few less than that.
constexpr int64_t column_row_groups(int64_t N, int64_t O, int64_t element_bytes) {
  const int64_t columns = column_strip(element_bytes);
  const int64_t strips = std::max<int64_t>(1, (O + columns - 1) / columns);
  return std::clamp<int64_t>(264 / strips, 1, std::clamp<int64_t>(N / 32, 1, 256));
}

inline int64_t column_sum_bytes(const TensorType& x) {
  const int64_t O = x.dims.back();
  return column_row_groups(rows_of(x), O, size_of(x.dtype)) * O * size_of(gradient_dtype(x.dtype));
}

}  // namespace tokamak
