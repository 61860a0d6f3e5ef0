#include "tokamak/run/device_peak.h"

#include <gtest/gtest.h>

namespace tokamak {
namespace {

TEST(DevicePeak, KnowsPartsByTheirDriversNames) {
  EXPECT_EQ(device_peak_flops("NVIDIA H200"), 989e12);
  EXPECT_EQ(device_peak_flops("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(device_peak_flops("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(device_peak_flops("NVIDIA H20"), 148e12);
  EXPECT_EQ(device_peak_flops("NVIDIA GB200"), 2.5e15);
  EXPECT_EQ(device_peak_flops("NVIDIA B200"), 2.25e15);
  EXPECT_EQ(device_peak_flops("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(device_peak_flops("AMD Instinct MI250X"), 191.5e12);
  EXPECT_EQ(device_peak_flops("Some card"), std::nullopt);
}

}  // namespace
}  // namespace tokamak
