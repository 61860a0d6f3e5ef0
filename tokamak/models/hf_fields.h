// Reads members of a config.json. Include it in .cpp files only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tokamak/core/error.h"
#include "tokamak/core/json.h"

namespace tokamak {

// Bounds that keep counts of bytes within 64 bits, and a graph within memory.
inline constexpr int64_t kMostExtent = int64_t{1} << 20U;
inline constexpr int64_t kMostVocab = int64_t{1} << 24U;
inline constexpr int64_t kMostPositions = int64_t{1} << 31U;
inline constexpr int64_t kMostLayers = 1024;

/// Reads members of one config.json with its name in every message.
class HfFields {
 public:
  HfFields(const Json& json, std::string_view what) : json_(json), what_(what) {}

  int64_t extent(const std::string& key, int64_t most = kMostExtent) const {
    return checked(key, json_member<int64_t>(json_, key, what_), most);
  }

  int64_t extent_or(const std::string& key, int64_t fallback, int64_t most = kMostExtent) const {
    return checked(key, json_member_or<int64_t>(json_, key, fallback, what_), most);
  }

  double positive_or(const std::string& key, double fallback) const {
    const double value = number_or(key, fallback);
    TOK_REQUIRE(value > 0.0, "{}: \"{}\": wanted a positive number, got {}", what_, key, value);
    return value;
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

  bool is_null(const std::string& key) const { return json_.contains(key) && json_[key].is_null(); }

  // Returns the numbers of a list.
  std::vector<double> numbers(const std::string& key) const { return list<double>(key, "numbers"); }

  std::vector<std::string> texts(const std::string& key) const {
    return list<std::string>(key, "texts");
  }

  // Returns the first text of a list, or `fallback` if there is no such list.
  std::string first_text_or(const std::string& key, const std::string& fallback) const {
    if (!has(key) || !json_[key].is_array() || json_[key].empty()) return fallback;
    return json_[key][0].is_string() ? json_[key][0].get<std::string>() : fallback;
  }

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
  template <class T>
  std::vector<T> list(const std::string& key, std::string_view of) const {
    const auto fits = [](const Json& x) {
      return std::is_same_v<T, double> ? x.is_number() : x.is_string();
    };
    TOK_REQUIRE(has(key) && json_[key].is_array() &&
                    std::all_of(json_[key].begin(), json_[key].end(), fits),
                "{}: \"{}\": wanted a list of {}", what_, key, of);
    return json_[key].get<std::vector<T>>();
  }

  int64_t checked(const std::string& key, int64_t value, int64_t most) const {
    TOK_REQUIRE(value > 0 && value <= most, "{}: \"{}\": wanted a size from 1 to {}, got {}", what_,
                key, most, value);
    return value;
  }

  const Json& json_;
  std::string_view what_;
};

}  // namespace tokamak
