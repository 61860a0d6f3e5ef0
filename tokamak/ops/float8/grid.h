// How scales lie over a matrix of quantized values.
#pragma once

#include <string_view>

#include "tokamak/core/tensor_type.h"

namespace tokamak {

/// States which quantized values share a scale. Quantized values form a matrix [R, K] whose rows
/// are dense along the dim over which the matmul sums.
enum class ScaleGrid : uint8_t {
  kTensor,    ///< all quantized values share one: scales [1]
  kRows,      ///< each row has one: scales [R]
  kSegments,  ///< each 128 neighbours of a row have one: scales [ceil(K / 128), R]
  kBlocks,    ///< each 128 x 128 have one: scales [ceil(R / 128), ceil(K / 128) rounded up to a
              ///< multiple of 4]
  kMx,  ///< each 32 neighbours of a row have one, E8M0 (ops/float8/mx.h), in tiles of 128 rows by 4
        ///< scales: [ceil(R / 128), ceil(K / 128), 512]
};

/// The edge of a block and the length of a segment.
inline constexpr int64_t kScaleBlock = 128;

/// The length of a segment of kMx.
inline constexpr int64_t kMxBlock = 32;

std::string_view name_of(ScaleGrid grid);

/// The type of the inverse scales; the bytes of kMx are E8M0.
constexpr DType scale_type(ScaleGrid grid) {
  return grid == ScaleGrid::kMx ? DType::kU8 : DType::kF32;
}

/// Returns the dims of the scales of `rows` x `columns` quantized values, in the layout that
/// cuBLASLt reads.
Dims scale_dims(ScaleGrid grid, int64_t rows, int64_t columns);

/// Returns the index, within those dims, of the scale of the code at (row, column).
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
    case ScaleGrid::kMx: {
      const int64_t tiles = (columns + kScaleBlock - 1) / kScaleBlock;
      const int64_t tile = row / kScaleBlock * tiles + column / kScaleBlock;
      return tile * 512 + row % 32 * 16 + row % kScaleBlock / 32 * 4 +
             column % kScaleBlock / kMxBlock;
    }
  }
  return 0;
}

}  // namespace tokamak
