// Random numbers made on the device.
#pragma once

#include "tokamak/exec/backend.h"

namespace tokamak::gpu {

/// Implements Backend::draw with the same bits as on the host. Throws Bug for types other than
/// float32, float64 and bfloat16.
void draw(std::byte* device, const RandomRange& range, DeviceStream stream);

}  // namespace tokamak::gpu
