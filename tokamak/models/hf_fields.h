// Reads members of a config.json. Include it in .cpp files only.
#pragma once

#include <string>
#include <string_view>

#include "tokamak/core/error.h"
#include "tokamak/core/json.h"

namespace tokamak {

/// Reads members of one config.json with its name in every message.
class HfFields {
 public:
  HfFields(const Json& json, std::string_view what) : json_(json), what_(what) {}

  int64_t extent(const std::string& key) const {
    return checked(key, json_member<int64_t>(json_, key, what_));
  }

  int64_t extent_or(const std::string& key, int64_t fallback) const {
    return checked(key, json_member_or<int64_t>(json_, key, fallback, what_));
  }

  double number_or(const std::string& key, double fallback) const {
    return json_member_or<double>(json_, key, fallback, what_);
  }

  bool flag_or(const std::string& key, bool fallback) const {
    return json_member_or<bool>(json_, key, fallback, what_);
  }

  std::string text_or(const std::string& key, const std::string& fallback) const {
    return json_member_or<std::string>(json_, key, fallback, what_);
  }

  double probability_or(const std::string& key, double fallback) const {
    const double p = number_or(key, fallback);
    TOK_REQUIRE(p >= 0.0 && p < 1.0, "{}: \"{}\": wanted a probability below 1, got {}", what_, key,
                p);
    return p;
  }

  bool has(const std::string& key) const { return json_.contains(key) && !json_[key].is_null(); }

  // Requires a field to have one value, since any other changes the maths.
  void must_be(const std::string& key, const Json& only) const {
    if (!has(key)) return;
    TOK_REQUIRE(json_[key] == only, "{}: \"{}\": {} is not supported, only {}", what_, key,
                json_[key].dump().substr(0, 60), only.dump());
  }

  void must_be_absent(const std::string& key) const {
    TOK_REQUIRE(!has(key), "{}: \"{}\" is not supported", what_, key);
  }

  HfFields inside(const std::string& key) const {
    TOK_REQUIRE(json_[key].is_object(), "{}: \"{}\": wanted an object", what_, key);
    return {json_[key], what_};
  }

  std::string_view what() const { return what_; }

 private:
  int64_t checked(const std::string& key, int64_t value) const {
    TOK_REQUIRE(value > 0 && value < (int64_t{1} << 31U),
                "{}: \"{}\": wanted a positive size, got {}", what_, key, value);
    return value;
  }

  const Json& json_;
  std::string_view what_;
};

}  // namespace tokamak
