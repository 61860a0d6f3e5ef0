// Finds the known name nearest to an unknown one, for "Did you mean".
#pragma once

#include <string>
#include <string_view>

#include "tokamak/core/names.h"

namespace tokamak {

/// Returns "; the nearest is a.b", of keys and renamed ones, with " (now c.d)" if it became
/// another; where none is near, where to find the keys of the section, or of all sections.
std::string unknown_key_hint(std::string_view name);

}  // namespace tokamak
