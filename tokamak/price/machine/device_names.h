// Names of devices, as drivers give them and as people write them, from machines/devices/*.toml.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/price/machine/machine.h"

namespace tokamak::price {

struct DeviceNames {
  std::string part;                       ///< of a machine: "h100-sxm"
  std::vector<std::string> driver_names;  ///< parts of the names that drivers give: "H100"
  /// Expressions in small letters for texts of published runs: a name, then what is written beside
  /// it: "h\W?100 hbm2e".
  std::vector<std::string> aliases;
  std::string machine;  ///< assumed for such runs; empty: we have none
};

/// Returns the names of every built-in device.
std::span<const DeviceNames> device_names();

/// Returns the machine that is assumed of a device whose driver gives this name ("h200" for
/// "NVIDIA H200"); "" where we have none.
std::string machine_of_driver(std::string_view name);

/// Returns the device whose driver gives this name ("NVIDIA H200"), one die if the driver shows
/// dies; nothing for an unknown name. Some devices have only a known peak.
std::optional<Device> device_of_driver(std::string_view name);

}  // namespace tokamak::price
