// The files that machines are read from.
#pragma once

#include <optional>
#include <string_view>

namespace tokamak::price {

/// The text of a machine, device or fabric that the program carries.
std::optional<std::string_view> built_in_machine_file(std::string_view name);

}  // namespace tokamak::price
