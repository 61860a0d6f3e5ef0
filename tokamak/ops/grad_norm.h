// Global norm of gradients and the factor that clips it.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

/// x -> f64 [1] (+)= sum of x^2, in double over fixed blocks: the same bits at any thread count.
struct SumSquares {
  static constexpr std::string_view kName = "sum_squares";
  static constexpr int64_t kBlock = 65536;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, const Node& n, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<int> accumulates() const { return {0}; }

  static std::span<const Variant> variants();
};

/// sum of squares f64 [1], and optionally the loss f64 [1] -> norm f64 [1] = sqrt(sum), factor f32
/// [1] = min(1, max_norm / (norm + 1e-6)), or 1 where max_norm <= 0. The factor is NaN where the
/// norm or the loss is not finite: then `adamw` leaves everything as it is.
struct ClipFactor {
  static constexpr std::string_view kName = "clip_factor";
  double max_norm = 1.0;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, const Node& n, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  static std::span<const Variant> variants() { return reference_only(); }
};

}  // namespace tokamak
