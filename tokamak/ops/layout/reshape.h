// Another shape for the same elements.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

/// y = x with other dims; a view, so x must be dense. A dim of 0 keeps the input's dim at that
/// place, and one dim may be -1, which takes what is left; so the same op serves a shard.
struct Reshape {
  static constexpr std::string_view kName = "reshape";
  Dims dims;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, int32_t self, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  Layout view(const Layout& in) const;

  static std::span<const Variant> variants() { return {}; }
};

}  // namespace tokamak
