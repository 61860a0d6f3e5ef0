// Elementwise sum: the residual stream, and sums of cotangents.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

/// y = a + b, equal dims and dtypes; y may take the storage of either.
struct Add {
  static constexpr std::string_view kName = "add";
  static constexpr bool kIsSum = true;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, int32_t self, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0}, {.out = 0, .in = 1}}; }

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
