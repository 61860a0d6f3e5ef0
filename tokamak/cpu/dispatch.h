// Dispatch from element types at run time to templates.
#pragma once

#include <string_view>

#include "tokamak/core/error.h"
#include "tokamak/cpu/parallel.h"
#include "tokamak/exec/kernel.h"

namespace tokamak::cpu {

namespace detail {

template <class T>
struct AccumOf {
  using Type = float;
};

template <>
struct AccumOf<double> {
  using Type = double;
};

template <>
struct AccumOf<int32_t> {
  using Type = double;
};

template <>
struct AccumOf<int64_t> {
  using Type = double;
};

}  // namespace detail

/// The type that elements of T are computed in: double for double and integers, else float.
template <class T>
using Accum = typename detail::AccumOf<T>::Type;

/// Calls `make.operator()<T>()` for the float type `dtype` and returns its kernel.
template <class Make>
Kernel by_float(DType dtype, Make&& make) {
  switch (dtype) {
    case DType::kF32:
      return make.template operator()<float>();
    case DType::kF64:
      return make.template operator()<double>();
    case DType::kBF16:
      return make.template operator()<BF16>();
    default:
      TOK_CHECK(false, "no kernel for {}", name_of(dtype));
  }
}

/// Does the same for float types, int32 and int64.
template <class Make>
Kernel by_number(DType dtype, Make&& make) {
  if (dtype == DType::kI32) return make.template operator()<int32_t>();
  if (dtype == DType::kI64) return make.template operator()<int64_t>();
  return by_float(dtype, make);
}

}  // namespace tokamak::cpu
