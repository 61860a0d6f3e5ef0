// A Config as text: JSON for people and tools, a digest for checkpoints, help for each key.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokamak/config/config.h"

namespace tokamak {

/// Every live key as nested JSON in the order of the table, ending with a newline.
std::string config_json(const Config& config);

/// A file that load_config() reads back to the same Config: the keys that differ from their
/// defaults, in the order of the table, without job.config_file. Throws Error where a key is none
/// and a file cannot say so.
std::string config_toml(const Config& config);

/// Every live key and its value as text, in the order of the table.
std::vector<std::pair<std::string, std::string>> key_values(const Config& config);

/// 16 hex digits that change when any key that may alter the result changes; folders and
/// descriptions do not count.
std::string config_digest(const Config& config);

/// Type, default, allowed values and meaning of a key, or what a retired one became, or all keys of
/// a section. Throws Error with the nearest name for anything else.
std::string key_help(std::string_view name);

/// One line for each key of every section, for `train --help`.
std::string all_keys_help();

}  // namespace tokamak
