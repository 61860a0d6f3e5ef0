// The table of every key. A key's type and default come from its Config field, the rest from
// one line of key_table.cpp. The table drives files, overrides, help, JSON and checks.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokamak/config/config.h"
#include "tokamak/core/names.h"
#include "tokamak/core/value.h"

namespace tokamak {

/// A field of Config, by its type.
using FieldRef = std::variant<bool*, int64_t*, double*, std::string*, Strings*,
                              std::optional<int64_t>*, std::optional<double>*,
                              std::optional<std::string>*, std::optional<std::vector<Strings>>*>;

struct Key {
  std::string_view name;
  FieldRef (*field)(Config&);
  /// "" allows anything, "path" a local path, "path or address" a mix of local paths and of
  /// addresses of stores (hub/file_store.h), "a|b" is a closed list, "~a|b" is a list whose other
  /// values become needs lines, and ">=1", ">0", "0..1" and ">=1 or -1" bound numbers.
  std::string_view allowed;
  std::string_view help;
};

/// Returns all keys, in the order of Config.
std::span<const Key> all_keys();

/// Returns the key with this full name, or null.
const Key* find_key(std::string_view name);

/// Returns "bool", "int", "float", "string", "list of strings" or "list of lists of strings".
std::string_view type_name(const Key& key);

/// Whether the field may be null, which overrides and files write as "none".
bool is_nullable(const Key& key);

/// Returns the field's value.
SettingValue get_value(const Config& config, const Key& key);

/// Returns the default as a user would write it.
std::string default_text(const Key& key);

/// Checks type and allowed values, then assigns; returns "" or "wanted ..., got ...".
std::string set_value(Config& config, const Key& key, const SettingValue& value);

/// Reads the text of an override as the key's type; text that does not fit stays a string.
SettingValue parse_text(const Key& key, std::string_view text);

/// Whether the key has an open list ("~a|b") that does not hold the current value.
bool is_foreign_value(const Config& config, const Key& key);

/// Returns the listed values of `allowed`, or nothing where it is not a list.
std::vector<std::string> allowed_list(const Key& key);

/// Returns "; the nearest is a.b", of keys and renamed ones, with " (now c.d)" if it became
/// another; where none is near, where to find the keys of the section, or of all sections.
std::string unknown_key_hint(std::string_view name);

}  // namespace tokamak
