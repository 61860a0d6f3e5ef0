// Counts the zeros and the largest codes of a tensor of 8-bit or 4-bit codes (debug.fp8_stats).
#pragma once

#include "tokamak/ops/float8/grid.h"
#include "tokamak/ops/rules.h"

namespace tokamak {

/// The inputs are codes as their values lie and their inverse scales. The outputs are, in fp64 [3],
/// the numbers of codes, of zeros and of codes of the largest magnitude, which accumulate; in fp32
/// [1] the greatest magnitude that a code stands for; and in fp32 [1] the greatest inverse scale of
/// a code (of kMx and kNvfp4 that of a block), NaN counting as greatest.
struct CodeCounts {
  static constexpr std::string_view kName = "code_counts";
  static constexpr int kNumCounts = 3;
  ScaleGrid grid = ScaleGrid::kTensor;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<int> accumulates() const { return {0}; }

  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
