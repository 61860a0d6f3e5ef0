// Rows of several tensors, one after the other.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

/// y = the inputs stacked along dim 0; they agree in dtype and all other dims.
struct ConcatRows {
  static constexpr std::string_view kName = "concat_rows";

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, int32_t self, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
