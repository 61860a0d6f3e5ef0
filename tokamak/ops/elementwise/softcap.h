// A soft bound on logits, as some models have it.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

/// y = cap tanh(x / cap); y may take the storage of x. CrossEntropyGrad with the same cap goes back
/// through it.
struct Softcap {
  static constexpr std::string_view kName = "softcap";
  double cap = 1.0;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;

  std::vector<Alias> aliases() const { return {{.out = 0, .in = 0}}; }

  std::string describe() const;

  static std::span<const Variant> variants() { return one_kernel(); }
};

}  // namespace tokamak
