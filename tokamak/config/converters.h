// The layers that model.converters replace.
#pragma once

#include <string>
#include <string_view>

#include "tokamak/config/config.h"

namespace tokamak {

/// Whether model.converters name float8 linear layers.
bool has_float8(const Config& config);

/// Whether model.converters name linear layers of microscaling formats.
bool has_mx(const Config& config);

/// Whether this program has a converter of this name, which is the section of its keys.
bool is_converter(std::string_view name);

/// Returns the name of a converter that torchtitan spells "float8" or "mx"; others as they are.
std::string full_converter_name(const std::string& name);

/// Whether `key` is of a converter that model.converters do not name.
bool lacks_converter(std::string_view key, const Config& config);

}  // namespace tokamak
