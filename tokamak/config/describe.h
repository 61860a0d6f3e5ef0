// A Config as text: JSON for people and tools, a digest for checkpoints, help for each key.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokamak/config/config.h"

namespace tokamak {

/// Returns every live key as nested JSON in the order of the table, ending with a newline.
std::string config_json(const Config& config);

/// Returns the text of a file that load_config() reads back to the same Config: the keys that
/// differ from their defaults, in the order of the table, without job.config_file. Throws Error
/// naming a key whose text is not UTF-8.
std::string config_toml(const Config& config);

/// Returns every live key and its value as text, in the order of the table.
std::vector<std::pair<std::string, std::string>> key_values(const Config& config);

/// Returns 16 hex digits that change when any key changes that may alter the result; folders and
/// descriptions do not count.
std::string config_digest(const Config& config);

/// Returns a key's type, default, allowed values and meaning, or what an accepted name became, or
/// all keys of a section, or of "all" sections. Throws Error with the nearest name for anything
/// else.
std::string key_help(std::string_view name);

/// Returns a JSON schema (draft 7) of the files that load_config() reads, for editors: types,
/// allowed values, defaults and meanings; accepted names are marked as deprecated.
std::string config_schema();

/// Returns the names of all sections, in the order of the table.
std::vector<std::string> sections();

}  // namespace tokamak
