// Values as they come from outside, before a key gives them a type.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tokamak {

/// A value that no key takes, such as a date, a mixed list or a table; `what` describes it.
struct OddValue {
  std::string what;
};

/// monostate is null, which only overrides can write, as "none".
using SettingValue =
    std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<std::string>,
                 std::vector<std::vector<std::string>>, OddValue>;

/// One key as it was written: the full name, its value and "file:line" or "--name".
struct Entry {
  std::string name;
  SettingValue value;
  std::string origin;
  /// The line in its file, or the index among the overrides.
  int64_t order = 0;
};

/// Returns the value as a user would write it, e.g. true, 0.001, "text", ["a", "b"].
std::string value_text(const SettingValue& value);

/// Returns the value with its type, e.g. the string "text", for "got ..." in messages.
std::string value_description(const SettingValue& value);

/// Returns the shortest text that reads back to the same double and looks like one.
std::string double_text(double value);

/// Returns the number that the whole text is, or nothing.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Splits at `separator` and trims blanks; an empty text gives an empty list.
std::vector<std::string> split_list(std::string_view text, char separator);

}  // namespace tokamak
