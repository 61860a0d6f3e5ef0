// The table of every live key: type and default come from the Config field, the rest is written in
// one line of key_table.cpp. Files, overrides, help, JSON and checks are all driven by it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokamak/config/config.h"
#include "tokamak/core/value.h"

namespace tokamak {

/// What happens with a key.
enum class Behaviour {
  kHonoured,  ///< It does what its help says.
  kDormant,   ///< Accepted; it matters only with what this build lacks, and a note says so.
  kFeature    ///< A value other than the default may ask for what a build lacks (needs()).
};

/// A field of Config, by its type.
using FieldRef = std::variant<bool*, int64_t*, double*, std::string*, Strings*,
                              std::optional<int64_t>*, std::optional<double>*,
                              std::optional<std::string>*, std::optional<std::vector<Strings>>*>;

struct Key {
  std::string_view name;
  FieldRef (*field)(Config&);
  Behaviour behaviour;
  /// "" for anything; "a|b" a closed list; "~a|b" a list where others become needs lines; ">=1",
  /// ">0", "0..1", and ">=1 or -1" for numbers.
  std::string_view allowed;
  std::string_view help;
};

/// All live keys, in the order of Config.
std::span<const Key> all_keys();

/// The key of that full name, or null.
const Key* find_key(std::string_view name);

/// "bool", "int", "float", "string", "list of strings", "list of lists of strings".
std::string_view type_name(const Key& key);

/// True where the field may be null ("none" on the command line, absence in a file).
bool is_nullable(const Key& key);

/// The field's value.
Value get_value(const Config& config, const Key& key);

/// The default as a user would write it.
std::string default_text(const Key& key);

/// Assigns after checking type and allowed values; returns "" or "wanted ..., got ...".
std::string set_value(Config& config, const Key& key, const Value& value);

/// Text of an override as the key's type; strings that do not fit stay strings.
Value parse_text(const Key& key, std::string_view text);

/// True for an open list ("~a|b") that does not hold the current value.
bool is_foreign_value(const Config& config, const Key& key);

/// The listed values of `allowed`, empty where it is no list.
std::vector<std::string> allowed_list(const Key& key);

}  // namespace tokamak
