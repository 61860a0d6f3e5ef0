// Software by name, as rows of measurements and `--software` name it
// (machines/evidence/words.toml).
#pragma once

#include <string>
#include <vector>

namespace tokamak {

/// Returns the names: "nemo", "torchtitan", "tokamak".
std::vector<std::string> software_names();

/// Returns the machine files by which runs of `software` on `cluster` are priced, as those of rows
/// are: "gb200+torchtitan" for torchtitan on gb200. Parts of `cluster` that are of other software
/// are left out. Throws Error "--software NAME: ..." for an unknown name.
std::string machine_of_software(const std::string& cluster, const std::string& software);

}  // namespace tokamak
