// Quantized slices of weights that ranks own, before they travel.
#pragma once

#include "tokamak/ops/float8/grid.h"
#include "tokamak/ops/rules.h"

namespace tokamak {

/// Elements [begin, end) of a flat slice that are quantized under the scale of `site`.
struct QuantizedRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t site = 0;

  bool operator==(const QuantizedRange&) const = default;
};

/// x [n] -> f32 [num_sites]: the greatest magnitude of each site's ranges, and 0 where a site has
/// none. The result is exact in any order, and NaN counts as greatest. An optional second input
/// holds the sites' maxima so far. With `is_gated` the last input holds rows of a table of delayed
/// scales (amax_history.h), one for each site: ranges of a site that has a scale are not read and
/// count as zeros.
struct AmaxRanges {
  static constexpr std::string_view kName = "amax_ranges";
  static constexpr bool kIsKept = true;
  std::vector<QuantizedRange> ranges;
  int64_t num_sites = 0;
  DType rounds_to = DType::kF32;  ///< x is rounded to it first, as a compute copy would be
  bool is_gated = false;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// x [n], maxima f32 [sites] -> quantized values [n], inverse scales f32 [kStride sites], that of a
/// site at element kStride site and zeros between them. Quantized values of a range are those that
/// `quantize` makes under the maximum of its site (ScaleGrid::kTensor); elements outside all ranges
/// become 0. Ranges ascend and do not overlap. With `is_delayed` a third input holds rows of a
/// table of delayed scales (amax_history.h), one for each site, whose scales are taken where there
/// are any; with `has_amax` the last output is that of amax_ranges.
struct QuantizeRanges {
  static constexpr std::string_view kName = "quantize_ranges";
  static constexpr int64_t kStride = 4;  ///< cuBLASLt reads a scale at a multiple of 16 bytes
  std::vector<QuantizedRange> ranges;
  DType format = DType::kE4M3;
  bool power_of_two = false;
  DType rounds_to = DType::kF32;  ///< see AmaxRanges::rounds_to
  bool is_delayed = false;
  bool has_amax = false;  ///< only with is_delayed

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
