#include "tokamak/core/json.h"

#include <algorithm>
#include <set>
#include <vector>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

template <class J>
J parse(std::string_view text, std::string_view what, JsonLimits limits) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, typename J::parse_event_t event, J& parsed) {
    using Event = typename J::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      TOK_REQUIRE(depth < limits.max_depth, "{}: JSON nested deeper than {} levels", what,
                  limits.max_depth);
    }
    if (event == Event::object_start) {
      keys.emplace_back();
    } else if (event == Event::object_end) {
      keys.pop_back();
    } else if (event == Event::key) {
      const auto& key = parsed.template get_ref<const std::string&>();
      TOK_REQUIRE(keys.back().insert(key).second, "{}: JSON key \"{}\" is given twice", what, key);
    }
    return true;
  };
  try {
    return J::parse(text.begin(), text.end(), check);
  } catch (const nlohmann::json::parse_error& error) {
    const auto stop = text.begin() + static_cast<std::ptrdiff_t>(std::min(text.size(), error.byte));
    const auto line = 1 + std::count(text.begin(), stop, '\n');
    fail("{}: line {}: not valid JSON (byte {} of {})", what, line, error.byte, text.size());
  } catch (const nlohmann::json::out_of_range&) {
    fail("{}: a JSON number is beyond the range of a double", what);
  }
}

template <class T>
constexpr std::string_view kWanted = "a value";
template <>
constexpr std::string_view kWanted<std::string> = "a string";
template <>
constexpr std::string_view kWanted<int64_t> = "an integer";
template <>
constexpr std::string_view kWanted<double> = "a number";
template <>
constexpr std::string_view kWanted<bool> = "true or false";

template <class T>
bool holds(const Json& value) {
  if constexpr (std::is_same_v<T, std::string>) return value.is_string();
  if constexpr (std::is_same_v<T, int64_t>) {
    return value.is_number_unsigned() ? value.get<uint64_t>() <= INT64_MAX
                                      : value.is_number_integer();
  }
  if constexpr (std::is_same_v<T, double>) return value.is_number();
  if constexpr (std::is_same_v<T, bool>) return value.is_boolean();
}

}  // namespace

Json parse_json(std::string_view text, std::string_view what, JsonLimits limits) {
  return parse<Json>(text, what, limits);
}

OrderedJson parse_ordered_json(std::string_view text, std::string_view what, JsonLimits limits) {
  return parse<OrderedJson>(text, what, limits);
}

template <class T>
T json_member(const Json& object, const std::string& key, std::string_view what) {
  TOK_REQUIRE(object.is_object(), "{}: wanted a JSON object with \"{}\", got {}", what, key,
              object.type_name());
  const auto it = object.find(key);
  TOK_REQUIRE(it != object.end(), "{}: \"{}\" is missing", what, key);
  TOK_REQUIRE(holds<T>(*it), "{}: \"{}\": wanted {}, got {}", what, key, kWanted<T>,
              it->dump().substr(0, 40));
  return it->template get<T>();
}

template <class T>
T json_member_or(const Json& object, const std::string& key, T fallback, std::string_view what) {
  if (!object.is_object() || !object.contains(key) || object[key].is_null()) return fallback;
  return json_member<T>(object, key, what);
}

template std::string json_member(const Json&, const std::string&, std::string_view);
template int64_t json_member(const Json&, const std::string&, std::string_view);
template double json_member(const Json&, const std::string&, std::string_view);
template bool json_member(const Json&, const std::string&, std::string_view);
template std::string json_member_or(const Json&, const std::string&, std::string, std::string_view);
template int64_t json_member_or(const Json&, const std::string&, int64_t, std::string_view);
template double json_member_or(const Json&, const std::string&, double, std::string_view);
template bool json_member_or(const Json&, const std::string&, bool, std::string_view);

}  // namespace tokamak
