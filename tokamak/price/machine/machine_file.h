// The files that machines are read from.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/value.h"
#include "tokamak/price/machine/machine.h"

namespace tokamak::price {

/// A file's name without ".toml".
std::string stem_of(std::string_view file);

/// A text or a list of them; throws Error on anything else.
std::vector<std::string> text_values(const Entry& entry);

/// The numbers of one part that the program carries, and of its bases; the rest is 0.
Machine read_machine_part(const std::string& name);

/// The text of a machine, device or fabric that the program carries.
std::optional<std::string_view> built_in_machine_file(std::string_view name);

}  // namespace tokamak::price
