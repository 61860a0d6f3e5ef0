// Sums and maxima over members' buffers. Only this code decides the order and rounding of sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tokamak/comm/communicator.h"

namespace tokamak {

/// Sets out[i] = parts[0][i] op parts[1][i] op ..., in this order. 16-bit floats are reduced in
/// fp32 with one rounding at the end, other types in their own. A NaN in any part gives NaN. `out`
/// may be one of `parts`.
void reduce_in_order(std::span<const std::byte* const> parts, std::byte* out, int64_t count,
                     DType dtype, ReduceOp op);

}  // namespace tokamak
