// Names of devices: what drivers call them and what people write, as machines/devices/*.toml say.
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
  /// Of published runs, expressions in small letters: a name, then what is written beside it:
  /// "h\W?100 hbm2e".
  std::vector<std::string> aliases;
  std::string machine;  ///< that such runs are taken to be of; empty: none of ours
};

/// Those of every device that the program carries.
std::span<const DeviceNames> device_names();

/// The device whose driver gives this name ("NVIDIA H200"), one die where the driver shows dies;
/// nothing for a name that is not known. Of some devices only the peak is known.
std::optional<Device> device_of_driver(std::string_view name);

}  // namespace tokamak::price
