// The global norm of gradients and the factor that clips it.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

/// x -> f64 [1] (+)= sum of weight * x^2, in double over fixed blocks: the same bits at any thread
/// count. Each of `ranges` of a flat x has its weight; elements outside all ranges have weight 0.
struct SumSquares {
  static constexpr std::string_view kName = "sum_squares";
  static constexpr int64_t kBlock = 16384;

  struct WeightRange {
    int64_t begin = 0;
    int64_t end = 0;
    double weight = 1.0;
  };

  std::vector<WeightRange> ranges;  ///< empty: all of x, with weight 1

  /// Returns the blocks that are summed separately, each within one range.
  std::vector<WeightRange> blocks(int64_t numel) const;
  int64_t num_blocks(int64_t numel) const;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::string describe() const;

  std::vector<int> accumulates() const { return {0}; }

  static std::span<const Variant> variants();
};

/// sum of squares f64 [1], and optionally the loss f64 [1] and a limit f64 [1] -> norm f64 [1] =
/// sqrt(sum), factor f32 [1] = min(1, max_norm / (norm + 1e-6)), or 1 where max_norm <= 0. The
/// factor is NaN where the norm or the loss is not finite, or the norm is above the limit: then
/// `adamw` leaves everything as it is.
struct ClipFactor {
  static constexpr std::string_view kName = "clip_factor";
  double max_norm = 1.0;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
