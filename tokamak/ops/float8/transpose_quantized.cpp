#include "tokamak/ops/float8/transpose_quantized.h"

namespace tokamak {

Types TransposeQuantized::infer(std::span<const TensorType> in) const {
  const bool has_blocks = grid == ScaleGrid::kBlocks;
  require_inputs(kName, in, has_blocks ? 2 : 1, has_blocks ? 2 : 1);
  TOK_REQUIRE(is_scaled(in[0].dtype) && in[0].dims.size() == 2 && in[0].dims[0] % 16 == 0,
              "transpose_quantized: wanted a quantized matrix with a multiple of 16 rows, got {}",
              to_string(in[0]));
  TOK_REQUIRE(has_blocks || grid == ScaleGrid::kTensor,
              "transpose_quantized: scales by {} are others after it", name_of(grid));
  const int64_t rows = in[0].dims[0];
  const int64_t columns = in[0].dims[1];
  const TensorType quantized{.dtype = in[0].dtype, .dims = {columns, rows}};
  if (!has_blocks) return {quantized};
  const TensorType scales{.dtype = DType::kF32, .dims = scale_dims(grid, rows, columns)};
  TOK_REQUIRE(in[1] == scales, "transpose_quantized: scales want {}, got {}", to_string(scales),
              to_string(in[1]));
  return {quantized, {.dtype = DType::kF32, .dims = scale_dims(grid, columns, rows)}};
}

std::vector<Strategy> TransposeQuantized::place(std::span<const TensorType> in) const {
  return {replicate(in.size(), in.size())};
}

Cost TransposeQuantized::cost(std::span<const TensorType> in,
                              std::span<const TensorType> out) const {
  return memory_cost(in, out, 0.0);
}

std::string TransposeQuantized::describe() const {
  return std::string(name_of(grid));
}

}  // namespace tokamak
