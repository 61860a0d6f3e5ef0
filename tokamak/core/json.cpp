#include "tokamak/core/json.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"

namespace tokamak {
namespace {

// Checks what nlohmann's parser leaves unchecked. It runs on its own, because a callback of that
// parser makes the end of each object cost as much as its parent has members.
template <class J>
class LimitsCheck final : public nlohmann::json_sax<J> {
 public:
  LimitsCheck(std::string_view what, JsonLimits limits) : what_(what), limits_(limits) {}

  bool start_object(size_t) override {
    keys_.emplace_back();
    return enter();
  }

  bool key(std::string& key) override {
    auto& keys = keys_.back();
    TOK_REQUIRE(keys.insert(key).second, "{}: JSON key \"{}\" is given twice", what_,
                printable(key));
    TOK_REQUIRE(keys.size() <= limits_.max_members, "{}: a JSON object has more than {} members",
                what_, limits_.max_members);
    return true;
  }

  bool end_object() override {
    keys_.pop_back();
    return leave();
  }

  bool start_array(size_t) override { return enter(); }

  bool end_array() override { return leave(); }

  bool null() override { return true; }

  bool boolean(bool) override { return true; }

  bool number_integer(int64_t) override { return true; }

  bool number_unsigned(uint64_t) override { return true; }

  bool number_float(double, const std::string&) override { return true; }

  bool string(std::string&) override { return true; }

  bool binary(typename J::binary_t&) override { return true; }

  // The parser itself reports these.
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool enter() {
    TOK_REQUIRE(depth_ < limits_.max_depth, "{}: JSON nested deeper than {} levels", what_,
                limits_.max_depth);
    ++depth_;
    return true;
  }

  bool leave() {
    --depth_;
    return true;
  }

  std::string_view what_;
  JsonLimits limits_;
  int depth_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;
};

template <class J>
J parse(std::string_view text, std::string_view what, JsonLimits limits) {
  LimitsCheck<J> check(what, limits);
  J::sax_parse(text.begin(), text.end(), &check);
  try {
    return J::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& error) {
    TOK_REQUIRE(error.byte <= text.size(), "{}: not valid JSON: it ends too early (a cut file?)",
                what);
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
              printable(it->dump().substr(0, 40)));
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
