#include "tokamak/price/task/step_clock.h"

#include <cmath>

namespace tokamak::price {

double step_clock(const PowerUse& use, const Device& device) {
  constexpr double kLowest = 0.05;
  constexpr int kHalvings = 40;
  const auto is_within = [&](double clock) {
    const double step_s = use.products_s / std::pow(clock, device.gemm.clock_exponent) +
                          use.attention_s / clock + (1.0 - device.power.memory) * use.memory_s +
                          (1.0 - device.power.low_precision) * use.low_s +
                          (1.0 - device.power.collective) * use.collective_s;
    return clock * use.drawn_s <= step_s;
  };
  if (is_within(1.0)) return 1.0;
  double low = kLowest;
  double high = 1.0;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = 0.5 * (low + high);
    (is_within(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace tokamak::price
