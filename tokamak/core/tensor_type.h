// A tensor's element type and extents, which are global in the graph and local after `localize`.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "tokamak/core/dtype.h"

namespace tokamak {

/// Extents, outermost first. The layout is row-major unless strides say otherwise.
using Dims = std::vector<int64_t>;

struct TensorType {
  DType dtype = DType::kF32;
  Dims dims;

  bool operator==(const TensorType&) const = default;

  int64_t numel() const {
    return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
  }

  int64_t bytes() const { return numel() * size_of(dtype); }
};

/// Returns the row-major strides of `dims`, in elements.
Dims row_major(const Dims& dims);

/// "[2048, 4096]"
std::string to_string(const Dims& dims);

/// "float32[2048, 4096]"
std::string to_string(const TensorType& type);

}  // namespace tokamak
