// The control groups that bind this process.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace tokamak {

/// A line of /proc/self/cgroup.
struct ControlGroup {
  bool is_version_2 = false;
  std::filesystem::path path;  ///< below the hierarchy's mount point, with a "/" in front
};

/// Returns the groups that may limit `controller` ("memory", "cpu"): those of version 1 that have
/// it, and the one of version 2. All is read below `root`.
std::vector<ControlGroup> control_groups(std::string_view controller,
                                         const std::filesystem::path& root = "/");

}  // namespace tokamak
