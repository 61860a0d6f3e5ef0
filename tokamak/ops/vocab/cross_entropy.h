// Cross entropy over rows of logits, in three parts so that a vocabulary-parallel loss can
// communicate between them.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

// N tokens, V vocabulary entries: those from `first_column` on of a vocabulary that may be cut. A
// row's statistics are (max, sum of exp(x - max), logit of the label), in fp32 (fp64 from fp64);
// the last is 0 where the label is outside. If `valid_columns` is given, the columns from there on
// are padding: they count nowhere, and their gradient is 0.

/// logits [N, V], labels i32 [N] -> stats [N, 3]
struct SoftmaxStats {
  static constexpr std::string_view kName = "softmax_stats";
  int64_t first_column = 0;
  int64_t valid_columns = 0;  ///< 0: all

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  static std::span<const Variant> variants();
};

/// stats [R, N, 3] of the R parts of a cut vocabulary -> stats [N, 3] of the whole, in part order.
struct CombineStats {
  static constexpr std::string_view kName = "combine_stats";

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// stats [N, 3], labels i32 [N], scale f32 [1] -> f64 [1] (+)= scale * sum over labels other than
/// `ignore_index` of max + log(sum) - target.
struct Nll {
  static constexpr std::string_view kName = "nll";
  int32_t ignore_index = -100;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<int> accumulates() const { return {0}; }

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// logits, labels, stats, scale -> dlogits = scale * (softmax(logits) - one_hot(label)), a zero row
/// where the label is `ignore_index`; may take the storage of logits. With a `cap`, logits are
/// Softcap's, and the result is the gradient of its input: times 1 - (logits / cap)^2.
struct CrossEntropyGrad {
  static constexpr std::string_view kName = "cross_entropy_grad";
  int32_t ignore_index = -100;
  int64_t first_column = 0;
  int64_t valid_columns = 0;  ///< 0: all
  double cap = 0.0;           ///< 0: none

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::string describe() const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0}}; }

  static std::span<const Variant> variants();
};

}  // namespace tokamak
