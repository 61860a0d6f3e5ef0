// The files that machines are read from.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/value.h"
#include "tokamak/price/machine/machine.h"

namespace tokamak::price {

/// Returns a file's name without ".toml".
std::string stem_of(std::string_view file);

/// Returns a text or a list of texts; throws Error on anything else.
std::vector<std::string> text_values(const Entry& entry);

/// Reads the numbers of one built-in part and of its bases; all others are 0.
Machine read_machine_part(const std::string& name);

/// Returns the text of a built-in machine, device or fabric.
std::optional<std::string_view> built_in_machine_file(std::string_view name);

}  // namespace tokamak::price
