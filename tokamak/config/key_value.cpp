#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tokamak/config/key_table.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"

namespace tokamak {

namespace {

template <class T>
struct Unwrap {
  using Type = T;
};

template <class T>
struct Unwrap<std::optional<T>> {
  using Type = T;
};

template <class T>
using Inner = typename Unwrap<T>::Type;

template <class T>
constexpr bool kNullable = !std::is_same_v<Inner<T>, T>;

FieldRef field_of(const Key& key) {
  static Config defaults;
  return key.field(defaults);
}

std::string_view bare_allowed(const Key& key) {
  return key.allowed.substr(key.allowed.empty() || key.allowed[0] != '~' ? 0 : 1);
}

bool takes_address(const Key& key) {
  return key.allowed == "path or address";
}

bool is_path(const Key& key) {
  return key.allowed == "path" || takes_address(key);
}

bool is_range(std::string_view allowed) {
  return !allowed.empty() && (allowed[0] == '>' || allowed.find("..") != std::string_view::npos);
}

std::string wanted_list(const Key& key) {
  std::string text = "wanted ";
  const std::vector<std::string> names = allowed_list(key);
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  }
  return text;
}

bool in_range(std::string_view allowed, double value) {
  if (!std::isfinite(value)) return false;
  const size_t or_minus_one = allowed.find(" or -1");
  if (or_minus_one != std::string_view::npos) {
    if (value == -1) return true;
    allowed = allowed.substr(0, or_minus_one);
  }
  if (allowed == "0..1") return value >= 0 && value <= 1;
  if (allowed == ">=0") return value >= 0;
  if (allowed == ">=1") return value >= 1;
  TOK_CHECK(allowed.empty(), "unknown range {}", allowed);
  return true;
}

std::string range_error(const Key& key, const SettingValue& value) {
  return fmt::format("wanted {} {}, got {}", type_name(key) == "int" ? "an integer" : "a number",
                     key.allowed.empty() ? "that is finite" : key.allowed, value_text(value));
}

std::string check_listed(const Key& key, const std::string& text) {
  if (is_path(key)) return why_not_local(text, takes_address(key));
  if (key.allowed.empty() || key.allowed[0] == '~') return "";
  for (const std::string& name : allowed_list(key)) {
    if (name == text) return "";
  }
  return fmt::format("{}, got {}", wanted_list(key), value_description(SettingValue(text)));
}

// Each convert() moves the value into `out` and returns true where the type fits.
bool convert(const SettingValue& value, bool& out) {
  const bool* v = std::get_if<bool>(&value);
  if (v != nullptr) out = *v;
  return v != nullptr;
}

bool convert(const SettingValue& value, int64_t& out) {
  const int64_t* v = std::get_if<int64_t>(&value);
  if (v != nullptr) out = *v;
  return v != nullptr;
}

bool convert(const SettingValue& value, double& out) {
  if (const auto* v = std::get_if<double>(&value)) {
    out = *v;
    return true;
  }
  const int64_t* v = std::get_if<int64_t>(&value);
  if (v != nullptr) out = static_cast<double>(*v);
  return v != nullptr;
}

bool convert(const SettingValue& value, std::string& out) {
  const std::string* v = std::get_if<std::string>(&value);
  if (v != nullptr) out = *v;
  return v != nullptr;
}

bool convert(const SettingValue& value, Strings& out) {
  const Strings* v = std::get_if<Strings>(&value);
  if (v != nullptr) out = *v;
  return v != nullptr;
}

bool convert(const SettingValue& value, std::vector<Strings>& out) {
  if (const auto* v = std::get_if<std::vector<Strings>>(&value)) {
    out = *v;
    return true;
  }
  const Strings* v = std::get_if<Strings>(&value);
  if (v != nullptr && v->empty()) out.clear();
  return v != nullptr && v->empty();
}

std::string check(const Key& key, bool) {
  TOK_CHECK(key.allowed.empty());
  return "";
}

std::string check(const Key& key, int64_t v) {
  return in_range(key.allowed, static_cast<double>(v)) ? "" : range_error(key, SettingValue(v));
}

std::string check(const Key& key, double v) {
  return in_range(key.allowed, v) ? "" : range_error(key, SettingValue(v));
}

std::string check(const Key& key, const std::string& v) {
  return check_listed(key, v);
}

std::string check(const Key& key, const Strings& v) {
  for (const std::string& item : v) {
    if (std::string error = check_listed(key, item); !error.empty()) return error;
  }
  return "";
}

std::string check(const Key&, const std::vector<Strings>&) {
  return "";
}

// A key that may be null also takes "none", because TOML has no null.
bool is_none(const SettingValue& value) {
  const std::string* text = std::get_if<std::string>(&value);
  return std::holds_alternative<std::monostate>(value) || (text != nullptr && *text == "none");
}

}  // namespace

std::vector<std::string> allowed_list(const Key& key) {
  const std::string_view allowed = bare_allowed(key);
  return is_path(key) || is_range(allowed) ? std::vector<std::string>{} : split_list(allowed, '|');
}

std::string_view type_name(const Key& key) {
  static constexpr std::string_view kNames[] = {"bool",
                                                "int",
                                                "float",
                                                "string",
                                                "list of strings",
                                                "int",
                                                "float",
                                                "string",
                                                "list of lists of strings"};
  return kNames[field_of(key).index()];
}

bool is_nullable(const Key& key) {
  return std::visit([](auto* p) { return kNullable<std::remove_reference_t<decltype(*p)>>; },
                    field_of(key));
}

SettingValue get_value(const Config& config, const Key& key) {
  // A field accessor only takes an address; nothing is written through it here.
  const FieldRef field = key.field(const_cast<Config&>(config));
  return std::visit(
      [](auto* p) -> SettingValue {
        if constexpr (kNullable<std::remove_reference_t<decltype(*p)>>) {
          if (!*p) return std::monostate();
          return SettingValue(**p);
        } else {
          return SettingValue(*p);
        }
      },
      field);
}

std::string default_text(const Key& key) {
  return value_text(get_value(Config(), key));
}

std::string set_value(Config& config, const Key& key, const SettingValue& value) {
  static constexpr std::pair<std::string_view, std::string_view> kWanted[] = {
      {"bool", "true or false"},
      {"int", "an integer"},
      {"float", "a number"},
      {"string", "a string"},
      {"list of strings", "a list of strings"},
      {"list of lists of strings", "a list of lists of strings"}};
  return std::visit(
      [&](auto* p) -> std::string {
        using Field = std::remove_reference_t<decltype(*p)>;
        if constexpr (kNullable<Field>) {
          if (is_none(value)) {
            p->reset();
            return "";
          }
        }
        Inner<Field> converted{};
        if (!convert(value, converted)) {
          for (const auto& [type, wanted] : kWanted) {
            if (type == type_name(key)) {
              return fmt::format("wanted {}, got {}", wanted, value_description(value));
            }
          }
        }
        std::string error = check(key, converted);
        if (error.empty()) *p = std::move(converted);
        return error;
      },
      key.field(config));
}

SettingValue parse_text(const Key& key, std::string_view text) {
  const std::string_view type = type_name(key);
  if (is_nullable(key) && (text == "none" || text == "None" || text == "null")) {
    return std::monostate();
  }
  if (type == "bool" && (text == "true" || text == "True" || text == "1")) return true;
  if (type == "bool" && (text == "false" || text == "False" || text == "0")) return false;
  if (type == "int" || type == "float") {
    const std::string_view unsigned_text = text.substr(text.starts_with('+') ? 1 : 0);
    if (const auto number = parse_number<int64_t>(unsigned_text)) return *number;
    if (const auto number = parse_number<double>(unsigned_text)) return *number;
  }
  if (type == "list of strings") return split_list(text, ',');
  if (type == "list of lists of strings") {
    std::vector<Strings> rows;
    for (const std::string& row : split_list(text, ';')) rows.push_back(split_list(row, ','));
    return rows;
  }
  return std::string(text);
}

bool is_foreign_value(const Config& config, const Key& key) {
  if (key.allowed.empty() || key.allowed[0] != '~') return false;
  const SettingValue value = get_value(config, key);
  const std::string* text = std::get_if<std::string>(&value);
  if (text == nullptr) return false;
  const std::vector<std::string> names = allowed_list(key);
  return std::ranges::find(names, *text) == names.end();
}

}  // namespace tokamak
