#include "tokamak/price/machine/device_names.h"

#include <algorithm>
#include <utility>

#include <gtest/gtest.h>

namespace tokamak::price {
namespace {

std::optional<double> peak_of(std::string_view driver_name) {
  const auto device = device_of_driver(driver_name);
  if (!device) return std::nullopt;
  return device->peak_flops[Precision::kBf16];
}

TEST(DeviceNames, GivePeaksByTheDriversName) {
  EXPECT_EQ(peak_of("NVIDIA H200"), 989e12);
  EXPECT_EQ(peak_of("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(peak_of("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(peak_of("NVIDIA H20"), 148e12);
  EXPECT_EQ(peak_of("NVIDIA GB200"), 2.5e15);
  EXPECT_EQ(peak_of("NVIDIA B200"), 2.25e15);
  EXPECT_EQ(peak_of("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(peak_of("AMD Instinct MI250X"), 191.5e12);
  EXPECT_EQ(peak_of("Some card"), std::nullopt);
}

TEST(DeviceNames, GiveTheMachineByTheDriversName) {
  EXPECT_EQ(machine_of_driver("NVIDIA GB200"), "gb200");
  EXPECT_EQ(machine_of_driver("NVIDIA B200"), "b200");
  EXPECT_EQ(machine_of_driver("NVIDIA H200"), "h200");
  EXPECT_EQ(machine_of_driver("Some card"), "");
}

TEST(DeviceNames, GiveFloorsOnlyWhereTheyAreKnown) {
  const auto floors = [](std::string_view name) {
    const Device device = *device_of_driver(name);
    return std::pair(device.floor.gemm_flops_bf16, device.floor.bytes_per_s);
  };
  EXPECT_EQ(floors("NVIDIA H200"), std::pair(790e12, 4.2e12));
  EXPECT_EQ(floors("NVIDIA H100 80GB HBM3"), std::pair(750e12, 3.0e12));
  EXPECT_EQ(floors("NVIDIA A100-SXM4-80GB"), std::pair(280e12, 1.8e12));
  for (const char* name : {"NVIDIA H100 NVL", "NVIDIA A100-PCIE-40GB", "NVIDIA B200"})
    EXPECT_EQ(floors(name), std::pair(0.0, 0.0)) << name;
}

TEST(DeviceNames, AreOfDevicesWithAPeakAndOfMachinesThatThereAre) {
  const std::vector<std::string> machines = machine_names();
  for (const DeviceNames& device : device_names()) {
    for (const std::string& name : device.driver_names)
      EXPECT_GT(peak_of(name).value_or(0.0), 0.0) << name;
    const auto count = std::count(machines.begin(), machines.end(), device.machine);
    EXPECT_EQ(count, device.machine.empty() ? 0 : 1) << device.part;
  }
}

}  // namespace
}  // namespace tokamak::price
