// The change of an element type.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

/// y = x as `dtype`, rounded to nearest even.
struct Cast {
  static constexpr std::string_view kName = "cast";
  DType dtype = DType::kF32;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, int32_t self, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
