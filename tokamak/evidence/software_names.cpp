#include "tokamak/evidence/software_names.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"
#include "tokamak/core/value.h"
#include "tokamak/evidence/row_rules.h"
#include "tokamak/price/machine/device_names.h"

namespace tokamak {

std::vector<std::string> software_names() {
  return RowRules::built_in().values_of("software");
}

std::string machine_of_software(const std::string& cluster, const std::string& software) {
  const std::vector<std::string> names = software_names();
  const std::string name = lower_case(software);
  TOK_REQUIRE(std::find(names.begin(), names.end(), name) != names.end(),
              "--software {}: wanted {}{}", printable(software), fmt::join(names, ", "),
              nearest_hint(name, names));
  std::vector<std::string> parts = split_list(cluster, '+');
  const std::vector<std::string> of_software = price::software_part_names();
  std::erase_if(parts, [&](const std::string& part) {
    return std::find(of_software.begin(), of_software.end(), lower_case(part)) != of_software.end();
  });
  const std::string machine = lower_case(fmt::format("{}", fmt::join(parts, "+")));
  TOK_REQUIRE(!machine.empty(),
              "--software {}: --cluster {} names software alone: wanted a machine",
              printable(software), printable(cluster));
  RowTexts texts = {{"software", name}};
  const auto devices = price::device_names();
  const bool is_usual =
      std::any_of(devices.begin(), devices.end(),
                  [&](const price::DeviceNames& device) { return device.machine == machine; });
  texts[is_usual ? "device" : "machine"] =
      is_usual ? machine : fmt::format("{}", fmt::join(parts, "+"));
  RowRules::built_in().fill(texts);
  return text_in(texts, "machine_names");
}

}  // namespace tokamak
