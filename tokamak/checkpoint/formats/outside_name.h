// Names that come from files and may hold anything.
#pragma once

#include <string>
#include <string_view>

namespace tokamak {

/// Quoted for a one-line message: control characters escaped, length bounded.
std::string shown(std::string_view name);

/// Whether `name` can only be a file of the same folder: no separator, not "." or "..".
bool is_plain_file_name(std::string_view name);

}  // namespace tokamak
