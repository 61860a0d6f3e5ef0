// Handles names that come from files and may hold anything.
#pragma once

#include <string>
#include <string_view>

namespace tokamak {

/// Quotes the name for a one-line message; escapes control characters and bounds the length.
std::string shown(std::string_view name);

/// Whether `name` can only be a file of the same folder, with no separator and not "." or "..".
bool is_plain_file_name(std::string_view name);

}  // namespace tokamak
