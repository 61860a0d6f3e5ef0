#include "tokamak/ops/float8/transpose_codes.h"

#include "tokamak/ops/float8/quantize.h"

namespace tokamak {

Types TransposeCodes::infer(std::span<const TensorType> in) const {
  const bool has_blocks = grid != ScaleGrid::kTensor;
  require_inputs(kName, in, has_blocks ? 2 : 1, has_blocks ? 2 : 1);
  const bool is_4_bit = grid == ScaleGrid::kNvfp4Blocks;
  const int64_t multiple = padded_tokens(1, grid);
  TOK_REQUIRE((is_4_bit ? in[0].dtype == DType::kU8 : is_float8(in[0].dtype)) &&
                  in[0].dims.size() == 2 && in[0].dims[0] % multiple == 0,
              "transpose_codes: wanted a matrix of codes with a multiple of {} rows, got {}",
              multiple, to_string(in[0]));
  TOK_REQUIRE(!has_blocks || grid == ScaleGrid::kBlocks || is_4_bit,
              "transpose_codes: scales by {} are others after it", name_of(grid));
  const int each = codes_per_element(in[0].dtype);
  const int64_t rows = in[0].dims[0];
  const int64_t columns = in[0].dims[1] * each;
  const TensorType codes{.dtype = in[0].dtype, .dims = {columns, rows / each}};
  if (!has_blocks) return {codes};
  const auto scales_of = [&](int64_t r, int64_t k) {
    return TensorType{.dtype = scale_type(grid), .dims = scale_dims(grid, r, k)};
  };
  const TensorType scales = scales_of(rows, columns);
  TOK_REQUIRE(in[1] == scales, "transpose_codes: scales want {}, got {}", to_string(scales),
              to_string(in[1]));
  return {codes, scales_of(columns, rows)};
}

std::vector<Strategy> TransposeCodes::place(std::span<const TensorType> in) const {
  return {replicate(in.size(), in.size())};
}

Cost TransposeCodes::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  return memory_cost(in, out, 0.0);
}

std::string TransposeCodes::describe() const {
  return std::string(name_of(grid));
}

}  // namespace tokamak
