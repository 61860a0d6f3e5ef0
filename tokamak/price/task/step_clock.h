// Clocks under a power limit, which holds for a step as a whole: the device's controller is slower
// than kernels, so matmuls run faster next to cooler kernels. docs/pricing.md, "The step".
#pragma once

#include "tokamak/price/machine/machine.h"

namespace tokamak::price {

/// Seconds of a rank's step, at the highest clocks.
struct PowerUse {
  double products_s = 0.0;   ///< whose rate goes with a power of the clocks
  double attention_s = 0.0;  ///< whose rate goes with the clocks
  double low_s = 0.0;  ///< of matmuls in low precision that draw power.low_precision at any clocks
  double memory_s = 0.0;      ///< of kernels bound by memory, which do not care
  double collective_s = 0.0;  ///< of collectives between kernels, which do not care either
  double drawn_s = 0.0;       ///< the energy of matmuls and attention over the power limit
};

/// Returns the clocks over the highest clocks: the greatest at which the mean power stays within
/// the limit, if an operation's energy is proportional to the clocks and the rest draws the
/// device's shares of the limit. REQUIRES: device.power.memory > 0.
double step_clock(const PowerUse& use, const Device& device);

}  // namespace tokamak::price
