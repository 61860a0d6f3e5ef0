// How the elements of several ranks are reduced to one.
#pragma once

#include <cstdint>

namespace tokamak {

enum class ReduceOp : uint8_t { kSum, kMax };

}  // namespace tokamak
