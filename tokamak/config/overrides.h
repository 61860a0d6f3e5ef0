// Command-line overrides: --section.key=value, --section.key value, --section.flag,
// --section.no_flag; "-" in a name is "_".
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tokamak/core/value.h"

namespace tokamak {

/// Entries in the order written, typed by the key they name; what cannot be read goes to `errors`,
/// one line each. Unknown names are kept: resolving finds them.
std::vector<Entry> parse_overrides(std::span<const std::string> args,
                                   std::vector<std::string>& errors);

}  // namespace tokamak
