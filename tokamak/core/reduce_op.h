// How elements of several ranks become one.
#pragma once

#include <cstdint>

namespace tokamak {

enum class ReduceOp : uint8_t { kSum, kMax };

}  // namespace tokamak
