// Element types of weights, changed on the way in and out.
#pragma once

#include <cstddef>
#include <span>

#include "tokamak/core/dtype.h"

namespace tokamak {

/// Whether convert_elements knows the pair: any two floating-point types, or twice the same type.
bool can_convert(DType to, DType from);

/// Converts `from_bytes` element by element, rounding to nearest even; float16 overflows to
/// infinity. Either side may lie at any alignment. REQUIRES: can_convert, spans of equally many
/// elements that do not overlap.
void convert_elements(DType to, std::span<std::byte> to_bytes, DType from,
                      std::span<const std::byte> from_bytes);

}  // namespace tokamak
