// How scales lie over a matrix of codes.
#pragma once

#include <string_view>

#include "tokamak/core/tensor_type.h"

namespace tokamak {

/// States which codes share a scale. Codes form a matrix [R, K] whose rows are dense along the dim
/// over which the matmul sums.
enum class ScaleGrid : uint8_t {
  kTensor,    ///< all codes share one: scales [1]
  kRows,      ///< each row has one: scales [R]
  kSegments,  ///< each 128 neighbours of a row have one: scales [ceil(K / 128), R]
  kBlocks,    ///< each 128 x 128 have one: scales [ceil(R / 128), ceil(K / 128) rounded up to a
              ///< multiple of 4]
  kMx,        ///< each 32 neighbours of a row have one, E8M0 (core/mx.h), in tiles of 128 rows by 4
              ///< scales: [ceil(R / 128), ceil(K / 128), 512]
  kNvfp4,     ///< each 16 neighbours of a row have one, E4M3, in tiles of 128 rows by 4 scales, and
           ///< after all ceil(R / 128) ceil(K / 64) tiles of 512 bytes is one of the tensor, fp32,
           ///< in 16 bytes (core/nvfp4.h)
  kNvfp4Blocks,  ///< the same, but 16 x 16 have equal ones
};

/// The edge of a block and the length of a segment.
inline constexpr int64_t kScaleBlock = 128;

/// The length of a segment of kMx.
inline constexpr int64_t kMxBlock = 32;

/// The scales of a tile of kMx or kNvfp4, of a byte each.
inline constexpr int64_t kTileScales = 512;

constexpr bool is_nvfp4(ScaleGrid grid) {
  return grid == ScaleGrid::kNvfp4 || grid == ScaleGrid::kNvfp4Blocks;
}

std::string_view name_of(ScaleGrid grid);

/// The type of the elements that hold codes: codes of kNvfp4 have 4 bits and lie in bytes of two,
/// the first in the lower half; others are of `format`.
constexpr DType code_type(ScaleGrid grid, DType format) {
  return is_nvfp4(grid) ? DType::kU8 : format;
}

/// Returns the codes in an element of a code_type(), or 0 if `dtype` is none.
constexpr int codes_per_element(DType dtype) {
  return dtype == DType::kU8 ? 2 : is_float8(dtype) ? 1 : 0;
}

/// The type of the inverse scales; bytes are E8M0 or E4M3.
constexpr DType scale_type(ScaleGrid grid) {
  return grid == ScaleGrid::kMx || is_nvfp4(grid) ? DType::kU8 : DType::kF32;
}

/// The grid of the maxima from which the scales of codes follow: a tensor scale wants the greatest
/// of all, and the maxima of its blocks are taken where codes are made.
constexpr ScaleGrid maxima_grid(ScaleGrid grid) {
  return is_nvfp4(grid) ? ScaleGrid::kTensor : grid;
}

/// Returns the dims of the scales of `rows` x `columns` codes, in the layout that cuBLASLt reads.
Dims scale_dims(ScaleGrid grid, int64_t rows, int64_t columns);

namespace detail {

// Where cuBLASLt reads scale `part` of `row` in a tile of 128 rows by 4 scales.
constexpr int64_t place_in_tile(int64_t row, int64_t part) {
  return row % 32 * 16 + row % kScaleBlock / 32 * 4 + part;
}

}  // namespace detail

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
      return tile * kTileScales + detail::place_in_tile(row, column % kScaleBlock / kMxBlock);
    }
    case ScaleGrid::kNvfp4:
    case ScaleGrid::kNvfp4Blocks: {
      const int64_t tile = row / kScaleBlock * ((columns + 63) / 64) + column / 64;
      return tile * kTileScales + detail::place_in_tile(row, column % 64 / 16);
    }
  }
  return 0;
}

/// Returns where the fp32 scale of the tensor lies among the bytes of kNvfp4.
constexpr int64_t tensor_scale_index(int64_t rows, int64_t columns) {
  return (rows + kScaleBlock - 1) / kScaleBlock * ((columns + 63) / 64) * kTileScales;
}

}  // namespace tokamak
