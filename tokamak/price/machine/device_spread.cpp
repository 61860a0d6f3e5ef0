#include "tokamak/price/machine/device_spread.h"

#include <cmath>
#include <numbers>

#include "tokamak/core/error.h"

namespace tokamak::price {

double expected_greatest(int64_t n) {
  TOK_CHECK(n > 0, "the greatest of {} numbers", n);
  constexpr double kMost = 10.0;
  constexpr int kHalvings = 60;
  const double share = (static_cast<double>(n) - 0.375) / (static_cast<double>(n) + 0.25);
  double low = 0.0;
  double high = kMost;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = 0.5 * (low + high);
    const double below = 0.5 * std::erfc(-middle / std::numbers::sqrt2);
    (below < share ? low : high) = middle;
  }
  return low;
}

double slowest_lag(const Device& device, int64_t num_devices) {
  return device.gemm.sustained_spread * expected_greatest(num_devices);
}

Machine slowest_of(Machine machine, int64_t num_devices) {
  Device& d = machine.device;
  const double slower = 1.0 + slowest_lag(d, num_devices);
  d.gemm.sustained_efficiency /= slower;
  if (d.power.memory > 0.0) {
    // A device that sustains a lower rate draws more power at the same clocks, whatever it
    // computes.
    d.power.attention *= std::pow(slower, 1.0 + 1.0 / d.gemm.clock_exponent);
  } else {
    machine.software.power_derate /= slower;
  }
  return machine;
}

}  // namespace tokamak::price
