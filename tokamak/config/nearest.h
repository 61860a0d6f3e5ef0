// "Did you mean": the known name nearest to an unknown one.
#pragma once

#include <string>
#include <string_view>

#include "tokamak/core/names.h"

namespace tokamak {

/// The nearest live or retired key, a retired one with what it became: "a.b" or "a.b (now c.d)".
std::string nearest_key(std::string_view name);

}  // namespace tokamak
