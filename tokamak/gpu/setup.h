// What the kernels of this backend are prepared with.
#pragma once

#include <string_view>

#include "tokamak/gpu/device.h"

namespace tokamak::gpu {

/// What `prepare` may use besides the op and its types.
struct Setup {
  std::string_view variant;
  Device* device = nullptr;
  bool deterministic = false;  ///< sums in a fixed order, also by libraries
};

}  // namespace tokamak::gpu
