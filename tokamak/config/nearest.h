// Finds the known name nearest to an unknown one, for "Did you mean".
#pragma once

#include <string>
#include <string_view>

#include "tokamak/core/names.h"

namespace tokamak {

/// Returns the nearest live or retired key as "a.b", or "a.b (now c.d)" if it became another.
std::string nearest_key(std::string_view name);

}  // namespace tokamak
