// Command-line overrides: --section.key=value, --section.key value, --section.flag,
// --section.no_flag; "-" in a name is "_".
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tokamak/core/value.h"

namespace tokamak {

/// Returns the entries in the order written, typed by the key they name. Arguments that cannot be
/// read add a line each to `errors`. Unknown names are kept, for Merge to report.
std::vector<Entry> parse_overrides(std::span<const std::string> args,
                                   std::vector<std::string>& errors);

}  // namespace tokamak
