// Adds a value into storage where its producer cannot.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

/// y = x, cast to `dtype`; its output can accumulate, which is its purpose.
struct Accumulate {
  static constexpr std::string_view kName = "accumulate";
  DType dtype = DType::kF32;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<int> accumulates() const { return {0}; }

  static std::span<const Variant> variants() { return one_kernel(); }
};

/// Makes `into` receive `value` by the producer itself where it can, else by an Accumulate node;
/// returns the new content of `into`. REQUIRES: no other use of `value`.
Value accumulate_into(Graph& g, Value value, Value into, AccumulateMode mode);

}  // namespace tokamak
