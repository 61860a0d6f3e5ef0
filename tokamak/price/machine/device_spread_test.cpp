#include "tokamak/price/machine/device_spread.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tokamak/price/task/task_time.h"

namespace tokamak::price {
namespace {

// Tippett 1925; Harter 1961.
TEST(DeviceSpread, TheGreatestOfMoreNumbersIsGreater) {
  EXPECT_NEAR(expected_greatest(1), 0.0, 1e-9);
  EXPECT_NEAR(expected_greatest(2), 0.5642, 0.03);
  EXPECT_NEAR(expected_greatest(10), 1.5388, 0.01);
  EXPECT_NEAR(expected_greatest(100), 2.5076, 0.01);
  EXPECT_NEAR(expected_greatest(1000), 3.2414, 0.02);
}

double product_seconds(const Machine& machine) {
  return gemm_seconds(16384, 4096, 4096, 0.0, Precision::kBf16, machine);
}

TEST(DeviceSpread, TheSlowestOfManySustainsLess) {
  Machine machine = load_machine("h100-published");
  machine.device.gemm.sustained_spread = 0.02;
  const double alone = product_seconds(machine);
  EXPECT_DOUBLE_EQ(product_seconds(slowest_of(machine, 1)), alone);
  EXPECT_NEAR(product_seconds(slowest_of(machine, 100)) / alone, 1.0 + 0.02 * 2.51, 1e-3);
  EXPECT_NEAR(slowest_lag(machine.device, 100), 0.02 * 2.51, 1e-3);
  machine.device.gemm.sustained_spread = 0.0;
  EXPECT_DOUBLE_EQ(product_seconds(slowest_of(machine, 4096)), alone);
}

// Its clocks are what it lacks: short matmuls run at the rate of all devices.
TEST(DeviceSpread, WhereClocksArePricedTheSlowestDrawsMore) {
  Machine machine = load_machine("h200");
  ASSERT_GT(machine.device.power.memory, 0.0);
  machine.device.gemm.sustained_spread = 0.02;
  const Machine slowest = slowest_of(machine, 100);
  EXPECT_DOUBLE_EQ(product_seconds(slowest), product_seconds(machine));
  const double slower = 1.0 + 0.02 * 2.51;
  EXPECT_NEAR(machine.device.gemm.sustained_efficiency / slowest.device.gemm.sustained_efficiency,
              slower, 1e-3);
  const double more = std::pow(slower, 1.0 + 1.0 / machine.device.gemm.clock_exponent);
  EXPECT_NEAR(slowest.device.power.attention / machine.device.power.attention, more, 2e-3);
}

}  // namespace
}  // namespace tokamak::price
