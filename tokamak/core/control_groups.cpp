#include "tokamak/core/control_groups.h"

#include <fstream>
#include <string>

namespace tokamak {

std::vector<ControlGroup> control_groups(std::string_view controller,
                                         const std::filesystem::path& root) {
  std::vector<ControlGroup> found;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // ID:CONTROLLERS:PATH
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_version_2 = controllers == ",,";
    const std::string wanted = "," + std::string(controller) + ",";
    if (is_version_2 || controllers.find(wanted) != std::string::npos)
      found.push_back({.is_version_2 = is_version_2, .path = line.substr(second + 1)});
  }
  return found;
}

}  // namespace tokamak
