// The device and options that the kernels of this backend are prepared with.
#pragma once

#include <string_view>

#include "tokamak/gpu/device.h"

namespace tokamak::gpu {

/// The inputs of `prepare` besides the op and its types.
struct Setup {
  std::string_view variant;
  Device* device = nullptr;
  bool deterministic = false;  ///< sums have a fixed order, also in libraries
};

}  // namespace tokamak::gpu
