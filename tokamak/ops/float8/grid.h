// How scales lie over a matrix of codes.
#pragma once

#include <string_view>

#include "tokamak/core/tensor_type.h"

namespace tokamak {

/// Which codes share a scale. Codes are a matrix [R, K] whose rows are dense along the dim over
/// which a matmul sums.
enum class ScaleGrid : uint8_t {
  kTensor,    ///< all: scales [1]
  kRows,      ///< a row: scales [R]
  kSegments,  ///< 128 neighbours of a row: scales [ceil(K / 128), R]
  kBlocks,    ///< 128 x 128: scales [ceil(R / 128), ceil(K / 128) rounded up to a multiple of 4]
};

/// Edge of a block, and length of a segment.
inline constexpr int64_t kScaleBlock = 128;

std::string_view name_of(ScaleGrid grid);

/// Dims of the scales of `rows` x `columns` codes; cuBLASLt reads them as they lie.
Dims scale_dims(ScaleGrid grid, int64_t rows, int64_t columns);

/// Where in these dims the scale of the code at (row, column) is.
constexpr int64_t scale_index(ScaleGrid grid, int64_t rows, int64_t columns, int64_t row,
                              int64_t column) {
  switch (grid) {
    case ScaleGrid::kTensor:
      return 0;
    case ScaleGrid::kRows:
      return row;
    case ScaleGrid::kSegments:
      return column / kScaleBlock * rows + row;
    case ScaleGrid::kBlocks: {
      const int64_t blocks = (columns + kScaleBlock - 1) / kScaleBlock;
      return row / kScaleBlock * ((blocks + 3) / 4 * 4) + column / kScaleBlock;
    }
  }
  return 0;
}

}  // namespace tokamak
