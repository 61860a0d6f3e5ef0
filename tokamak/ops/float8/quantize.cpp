#include "tokamak/ops/float8/quantize.h"

#include <fmt/format.h>

#include "tokamak/ops/float8/float8.h"

namespace tokamak {
namespace {

int64_t blocks_of(int64_t n) {
  return (n + kScaleBlock - 1) / kScaleBlock;
}

// Returns rows and columns of the quantized values of `x`, as it lies or transposed.
Dims quantized_dims(const TensorType& x, ScaleGrid grid, bool transposed) {
  const Dims dims{rows_of(x), x.dims.back()};
  return transposed ? Dims{dims[1], padded_tokens(dims[0], grid)} : dims;
}

TensorType scales_of(const TensorType& x, ScaleGrid grid, bool transposed) {
  const Dims quantized = quantized_dims(x, grid, transposed);
  return {.dtype = scale_type(grid), .dims = scale_dims(grid, quantized[0], quantized[1])};
}

void require_values(std::string_view op, const TensorType& x) {
  TOK_REQUIRE(!x.dims.empty() && is_float(x.dtype), "{}: wanted floats with a last dim, got {}", op,
              to_string(x));
}

void require_row(std::string_view op, ScaleGrid grid, const TensorType& row) {
  TOK_REQUIRE(grid == ScaleGrid::kTensor, "{}: delayed scales are of whole tensors, not of {}", op,
              name_of(grid));
  TOK_REQUIRE(row.dtype == DType::kF32 && row.dims.size() == 1 && row.dims[0] >= 2,
              "{}: a row of delayed scales is a float32[2 or more], got {}", op, to_string(row));
}

std::string_view name_of(Quantize::Layout layout) {
  switch (layout) {
    case Quantize::Layout::kRows:
      return "as it lies";
    case Quantize::Layout::kTransposed:
      return "transposed";
    case Quantize::Layout::kBoth:
      return "both ways";
  }
  return "";
}

}  // namespace

std::string_view name_of(ScaleGrid grid) {
  switch (grid) {
    case ScaleGrid::kTensor:
      return "tensor";
    case ScaleGrid::kRows:
      return "rows";
    case ScaleGrid::kSegments:
      return "1x128";
    case ScaleGrid::kBlocks:
      return "128x128";
    case ScaleGrid::kMx:
      return "1x32";
  }
  return "";
}

Cost::Scales cost_scales(ScaleGrid grid) {
  switch (grid) {
    case ScaleGrid::kTensor:
      return Cost::Scales::kTensor;
    case ScaleGrid::kRows:
      return Cost::Scales::kRows;
    case ScaleGrid::kSegments:
    case ScaleGrid::kBlocks:
    case ScaleGrid::kMx:
      return Cost::Scales::kParts;
  }
  return Cost::Scales::kTensor;
}

Dims scale_dims(ScaleGrid grid, int64_t rows, int64_t columns) {
  switch (grid) {
    case ScaleGrid::kTensor:
      return {1};
    case ScaleGrid::kRows:
      return {rows};
    case ScaleGrid::kSegments:
      return {blocks_of(columns), rows};
    case ScaleGrid::kBlocks:
      return {blocks_of(rows), (blocks_of(columns) + 3) / 4 * 4};
    case ScaleGrid::kMx:
      return {blocks_of(rows), blocks_of(columns), 512};
  }
  return {};
}

Types Amax::infer(std::span<const TensorType> in) const {
  if (is_gated) {
    require_inputs(kName, in, 2, 3);
    require_row(kName, grid, in.back());
    in = in.first(in.size() - 1);
  }
  require_inputs(kName, in, 1, 2);
  require_values(kName, in[0]);
  TOK_REQUIRE(grid != ScaleGrid::kMx, "amax: maxima by {} are taken where values are quantized",
              name_of(grid));
  const TensorType out = scales_of(in[0], grid, transposed);
  TOK_REQUIRE(in.size() < 2 || in[1] == out, "amax: maxima so far want {}, got {}", to_string(out),
              to_string(in[1]));
  return {out};
}

std::vector<Strategy> Amax::place(std::span<const TensorType> in) const {
  return {replicate(in.size(), 1)};
}

Cost Amax::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  // A table has a scale in all steps but the first, so x is not read.
  return memory_cost(is_gated ? in.subspan(1) : in, out, 0.0);
}

std::string Amax::describe() const {
  return fmt::format("{}{}{}{}", name_of(grid), transposed ? " transposed" : "",
                     rounds_to == DType::kBF16 ? " of bfloat16" : "",
                     is_gated ? ", without a scale" : "");
}

Types Quantize::infer(std::span<const TensorType> in) const {
  if (is_delayed) {
    require_inputs(kName, in, 3, 3);
    require_row(kName, grid, in[2]);
    in = in.first(2);
  }
  require_inputs(kName, in, takes_maxima() ? 1 : 2, grid == ScaleGrid::kMx ? 1 : 2);
  require_values(kName, in[0]);
  const bool takes_columns = grid == ScaleGrid::kRows && layout == Layout::kRows && in.size() == 1;
  TOK_REQUIRE(is_delayed || takes_columns || !has_amax,
              "quantize: only delayed scales and those of rows want other maxima");
  TOK_REQUIRE(is_scaled(format), "quantize: {} is not an 8-bit float", name_of(format));
  TOK_REQUIRE(layout != Layout::kBoth || grid == ScaleGrid::kTensor ||
                  (grid == ScaleGrid::kSegments && in.size() == 1),
              "quantize: both layouts want one scale or own maxima of segments, not {}",
              name_of(grid));
  const TensorType scales = scales_of(in[0], grid, layout == Layout::kTransposed);
  TOK_REQUIRE(in.size() < 2 || in[1] == scales, "quantize: maxima want {}, got {}",
              to_string(scales), to_string(in[1]));
  Types out;
  if (layout != Layout::kTransposed) out.push_back({.dtype = format, .dims = in[0].dims});
  if (layout != Layout::kRows)
    out.push_back({.dtype = format, .dims = quantized_dims(in[0], grid, true)});
  out.push_back(scales);
  if (layout == Layout::kBoth && grid == ScaleGrid::kSegments)
    out.push_back(scales_of(in[0], grid, true));
  if (has_amax) out.push_back(is_delayed ? scales : scales_of(in[0], grid, true));
  return out;
}

std::vector<Strategy> Quantize::place(std::span<const TensorType> in) const {
  return {replicate(in.size(), num_quantized_and_scales() + (has_amax ? 1 : 0))};
}

Cost Quantize::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  Cost cost = memory_cost(in, out, 0.0);
  cost.scales = cost_scales(grid);
  return cost;
}

std::string Quantize::describe() const {
  return fmt::format("{} {} {}{}{}{}{}{}", name_of(format), name_of(grid), name_of(layout),
                     power_of_two ? ", powers of two" : "", rounds_up ? ", rounded up" : "",
                     rounds_to == DType::kBF16 ? ", of bfloat16" : "",
                     is_delayed ? ", delayed" : "",
                     !has_amax                    ? ""
                     : grid == ScaleGrid::kTensor ? " with its maximum"
                                                  : " with maxima of columns");
}

}  // namespace tokamak
