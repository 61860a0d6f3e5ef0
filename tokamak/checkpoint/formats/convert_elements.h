// Converts the element types of weights on import and export.
#pragma once

#include <cstddef>
#include <span>

#include "tokamak/core/dtype.h"

namespace tokamak {

/// Whether convert_elements knows the pair, which is two floating-point types or twice one type.
bool can_convert(DType to, DType from);

/// Converts `from_bytes` element by element, rounding to nearest even; float16 overflows to
/// infinity. Either side may have any alignment. REQUIRES: can_convert() holds, and the spans hold
/// equally many elements and do not overlap.
void convert_elements(DType to, std::span<std::byte> to_bytes, DType from,
                      std::span<const std::byte> from_bytes);

}  // namespace tokamak
