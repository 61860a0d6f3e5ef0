// A range of rows.
#pragma once

#include "tokamak/ops/rules.h"

namespace tokamak {

/// y = x[begin:end], along dim 0; a view.
struct SliceRows {
  static constexpr std::string_view kName = "slice_rows";
  int64_t begin = 0;
  int64_t end = 0;

  Types infer(std::span<const TensorType> in) const;
  std::vector<Strategy> place(std::span<const TensorType> in) const;
  Cost cost(std::span<const TensorType> in, std::span<const TensorType> out) const;
  Layout view(const Layout& in) const;
  std::string describe() const;

  static std::span<const Variant> variants() { return {}; }
};

}  // namespace tokamak
