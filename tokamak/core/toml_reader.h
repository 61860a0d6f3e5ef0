// Reads TOML text into a flat list of entries. Only toml_reader.cpp uses toml++.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/value.h"

namespace tokamak {

struct TomlEntries {
  std::vector<Entry> entries;
  /// Tables without keys, by full name.
  std::vector<Entry> empty_tables;
};

/// Throws Error "NAME:LINE: ..." on bad syntax, nesting deeper than a configuration can be, or more
/// than 1 MiB of text.
TomlEntries read_toml(std::string_view text, const std::string& name);

}  // namespace tokamak
