// The libraries that a portable build loads when needed: parts of the program in files of their
// own.
#pragma once

#include <filesystem>
#include <string_view>

namespace tokamak {

/// Returns where `file` lies: next to the program in a build folder, in lib/tokamak of its prefix
/// where it is installed. Returns an empty path if it is in neither.
std::filesystem::path find_own_library(std::string_view file);

}  // namespace tokamak
