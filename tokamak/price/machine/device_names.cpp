#include "tokamak/price/machine/device_names.h"

#include "tokamak/core/embedded.h"
#include "tokamak/core/toml_reader.h"
#include "tokamak/price/machine/machine_file.h"

namespace tokamak::price {

std::span<const EmbeddedFile> device_files();

namespace {

std::vector<DeviceNames> read_names() {
  std::vector<DeviceNames> all;
  for (const EmbeddedFile& file : device_files()) {
    DeviceNames names{.part = stem_of(file.name)};
    const TomlEntries toml = read_toml(file.text, std::string(file.name));
    for (const Entry& entry : toml.entries) {
      if (entry.name == "device.driver_names") names.driver_names = text_values(entry);
      if (entry.name == "device.aliases") names.aliases = text_values(entry);
      if (entry.name == "device.machine") names.machine = text_values(entry).front();
    }
    all.push_back(std::move(names));
  }
  return all;
}

// The longest part of a name decides: "GB200" holds "B200".
const DeviceNames* named_by_driver(std::string_view name) {
  const DeviceNames* found = nullptr;
  size_t longest = 0;
  for (const DeviceNames& device : device_names()) {
    for (const std::string& part : device.driver_names) {
      if (part.size() <= longest || name.find(part) == std::string_view::npos) continue;
      longest = part.size();
      found = &device;
    }
  }
  return found;
}

}  // namespace

std::span<const DeviceNames> device_names() {
  static const std::vector<DeviceNames> kAll = read_names();
  return kAll;
}

std::string machine_of_driver(std::string_view name) {
  const DeviceNames* found = named_by_driver(name);
  return found == nullptr ? "" : found->machine;
}

std::optional<Device> device_of_driver(std::string_view name) {
  const DeviceNames* found = named_by_driver(name);
  if (found == nullptr) return std::nullopt;
  return read_machine_part(found->part).device;
}

}  // namespace tokamak::price
