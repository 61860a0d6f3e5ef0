// Multiplication by a constant: of embeddings, in some models.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

/// y = a x, where a is rounded to x's dtype first, as Hugging Face does; y may take the storage
/// of x.
struct Scale {
  static constexpr std::string_view kName = "scale";
  double a = 1.0;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  std::vector<Value> gradient(Graph& g, int32_t self, std::span<const Value> dy) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0}}; }

  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
