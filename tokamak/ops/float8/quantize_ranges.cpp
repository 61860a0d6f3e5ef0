#include "tokamak/ops/float8/quantize_ranges.h"

#include <fmt/format.h>

namespace tokamak {
namespace {

void require_ranges(std::string_view op, const TensorType& x,
                    const std::vector<QuantizedRange>& ranges, int64_t num_sites) {
  TOK_REQUIRE(x.dims.size() == 1 && is_float(x.dtype), "{}: wanted a flat slice of floats, got {}",
              op, to_string(x));
  int64_t last = 0;
  for (const QuantizedRange& r : ranges) {
    TOK_REQUIRE(last <= r.begin && r.begin <= r.end && r.end <= x.dims[0],
                "{}: no elements {} to {} after {} in {}", op, r.begin, r.end, last, to_string(x));
    TOK_REQUIRE(0 <= r.site && r.site < num_sites, "{}: no site {} of {}", op, r.site, num_sites);
    last = r.end;
  }
}

void require_rows(std::string_view op, const TensorType& rows, int64_t num_sites) {
  TOK_REQUIRE(rows.dtype == DType::kF32 && rows.dims.size() == 2 && rows.dims[0] == num_sites &&
                  rows.dims[1] >= 2,
              "{}: rows of delayed scales are a float32[{}, 2 or more], got {}", op, num_sites,
              to_string(rows));
}

// Of a table only scales are read.
double bytes_of_rows(const TensorType& rows) {
  return static_cast<double>(rows.bytes() - rows.dims[0] * size_of(rows.dtype));
}

int64_t elements_of(const std::vector<QuantizedRange>& ranges) {
  int64_t sum = 0;
  for (const QuantizedRange& r : ranges) sum += r.end - r.begin;
  return sum;
}

std::string describe_ranges(const std::vector<QuantizedRange>& ranges, DType rounds_to) {
  return fmt::format("{} ranges{}", ranges.size(), rounds_to == DType::kBF16 ? " of bfloat16" : "");
}

}  // namespace

Types AmaxRanges::infer(std::span<const TensorType> in) const {
  if (is_gated) {
    require_inputs(kName, in, 2, 3);
    require_rows(kName, in.back(), num_sites);
    in = in.first(in.size() - 1);
  }
  require_inputs(kName, in, 1, 2);
  require_ranges(kName, in[0], ranges, num_sites);
  const TensorType out{.dtype = DType::kF32, .dims = {num_sites}};
  TOK_REQUIRE(in.size() < 2 || in[1] == out, "amax_ranges: maxima so far want {}, got {}",
              to_string(out), to_string(in[1]));
  return {out};
}

std::vector<Strategy> AmaxRanges::place(std::span<const TensorType> in) const {
  return {replicate(in.size(), 1)};
}

Cost AmaxRanges::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  // A table has scales in all steps but the first, so x is not read.
  if (is_gated) {
    Cost cost = memory_cost(in.subspan(1), out, 0.0);
    cost.bytes_read -= bytes_of_rows(in.back());
    return cost;
  }
  Cost cost = memory_cost(in, out, 0.0);
  cost.bytes_read -=
      static_cast<double>((in[0].numel() - elements_of(ranges)) * size_of(in[0].dtype));
  return cost;
}

std::string AmaxRanges::describe() const {
  return describe_ranges(ranges, rounds_to) + (is_gated ? ", without a scale" : "");
}

Types QuantizeRanges::infer(std::span<const TensorType> in) const {
  require_inputs(kName, in, is_delayed ? 3 : 2, is_delayed ? 3 : 2);
  TOK_REQUIRE(is_delayed || !has_amax, "quantize_ranges: only delayed scales want the maxima");
  TOK_REQUIRE(in[1].dtype == DType::kF32 && in[1].dims.size() == 1,
              "quantize_ranges: wanted maxima by site in fp32, got {}", to_string(in[1]));
  TOK_REQUIRE(is_scaled(format), "quantize_ranges: {} is not an 8-bit float", name_of(format));
  require_ranges(kName, in[0], ranges, in[1].dims[0]);
  if (is_delayed) require_rows(kName, in[2], in[1].dims[0]);
  const TensorType inverse{.dtype = DType::kF32, .dims = {kStride * in[1].dims[0]}};
  Types out{{.dtype = format, .dims = in[0].dims}, inverse};
  if (has_amax) out.push_back(in[1]);
  return out;
}

std::vector<Strategy> QuantizeRanges::place(std::span<const TensorType> in) const {
  return {replicate(in.size(), has_amax ? 3 : 2)};
}

Cost QuantizeRanges::cost(std::span<const TensorType> in, std::span<const TensorType> out) const {
  Cost cost = memory_cost(in, out, 0.0);
  cost.scales = Cost::Scales::kTensor;
  if (is_delayed) cost.bytes_read -= bytes_of_rows(in[2]);
  cost.bytes_read -=
      static_cast<double>((in[0].numel() - elements_of(ranges)) * size_of(in[0].dtype));
  return cost;
}

std::string QuantizeRanges::describe() const {
  return fmt::format("{}, {}{}{}{}", name_of(format), describe_ranges(ranges, rounds_to),
                     power_of_two ? ", powers of two" : "", is_delayed ? ", delayed" : "",
                     has_amax ? " with its maxima" : "");
}

}  // namespace tokamak
