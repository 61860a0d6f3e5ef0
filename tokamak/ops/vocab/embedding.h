// The lookup of rows of a table by token id, and the gradient of the table.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

// V vocabulary, D embed.

/// y[.., :] = table[tokens[..] - first_row, :]; inputs tokens i32 [..], table [V, D]; y has the
/// table's dtype. An id outside the table gives a row of zeros: another rank has its row (the
/// loader refuses ids that no rank has).
struct Embedding {
  static constexpr std::string_view kName = "embedding";
  int64_t first_row = 0;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, int32_t self, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  std::optional<AnyOp> localize(const LocalContext& context) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// dtable[v, :] (+)= sum of dy[.., :] where tokens[..] = first_row + v, in token order (on a GPU
/// first in pieces of many tokens); inputs tokens, dy; fp32 (fp64 from fp64) [vocab, D].
struct EmbeddingGrad {
  static constexpr std::string_view kName = "embedding_grad";
  int64_t vocab = 0;
  int64_t first_row = 0;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::optional<AnyOp> localize(const LocalContext& context) const;
  std::string describe() const;

  std::vector<int> accumulates() const { return {0}; }

  static std::span<const Variant> variants();
};

}  // namespace tokamak
