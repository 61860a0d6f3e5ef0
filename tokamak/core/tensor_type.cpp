#include "tokamak/core/tensor_type.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tokamak {

Dims row_major(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

std::string to_string(const Dims& dims) {
  return fmt::format("[{}]", fmt::join(dims, ", "));
}

std::string to_string(const TensorType& type) {
  return fmt::format("{}{}", name_of(type.dtype), to_string(type.dims));
}

}  // namespace tokamak
