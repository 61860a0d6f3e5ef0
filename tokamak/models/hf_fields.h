// Reads members of a config.json. Include it in .cpp files only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
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

/// Reads members of one config.json with its name in every message, and knows which nobody read.
class HfFields {
 public:
  HfFields(const Json& json, std::string_view what) : json_(json), what_(what) {}

  int64_t extent(const std::string& key, int64_t most = kMostExtent) const {
    return checked(key, json_member<int64_t>(json_, read(key), what_), most);
  }

  int64_t extent_or(const std::string& key, int64_t fallback, int64_t most = kMostExtent) const {
    return checked(key, json_member_or<int64_t>(json_, read(key), fallback, what_), most);
  }

  double positive_or(const std::string& key, double fallback) const {
    const double value = number_or(key, fallback);
    TOK_REQUIRE(value > 0.0, "{}: \"{}\": wanted a positive number, got {}", what_, key, value);
    return value;
  }

  double number_or(const std::string& key, double fallback) const {
    return json_member_or<double>(json_, read(key), fallback, what_);
  }

  // To transformers null is false, so it cannot stand for true.
  bool flag_or(const std::string& key, bool fallback) const {
    TOK_REQUIRE(!fallback || !is_null(key), "{}: \"{}\": wanted true or false, got null", what_,
                key);
    return json_member_or<bool>(json_, read(key), fallback, what_);
  }

  std::string text_or(const std::string& key, const std::string& fallback) const {
    return json_member_or<std::string>(json_, read(key), fallback, what_);
  }

  double probability_or(const std::string& key, double fallback) const {
    const double p = number_or(key, fallback);
    TOK_REQUIRE(p >= 0.0 && p < 1.0, "{}: \"{}\": wanted a probability below 1, got {}", what_, key,
                p);
    return p;
  }

  bool has(const std::string& key) const {
    return json_.contains(read(key)) && !json_[key].is_null();
  }

  bool is_null(const std::string& key) const {
    return json_.contains(read(key)) && json_[key].is_null();
  }

  // Whether a member is an object with members.
  bool has_members(const std::string& key) const {
    return has(key) && !(json_[key].is_object() && json_[key].empty());
  }

  // Returns the numbers of a list.
  std::vector<double> numbers(const std::string& key) const { return list<double>(key, "numbers"); }

  std::vector<std::string> texts(const std::string& key) const {
    return list<std::string>(key, "texts");
  }

  // Returns the first string of a list, or `fallback` if there is no such list.
  std::string first_text_or(const std::string& key, const std::string& fallback) const {
    if (!has(key) || !json_[key].is_array() || json_[key].empty()) return fallback;
    return json_[key][0].is_string() ? json_[key][0].get<std::string>() : fallback;
  }

  // Requires a field to have one value, since any other changes the maths.
  void must_be(const std::string& key, const Json& only) const {
    if (!has(key)) return;
    TOK_REQUIRE(json_[key] == only, "{}: \"{}\": {} is not supported, only {}", what_, key,
                text_of(key), only.dump());
  }

  // Whether a member exists and says more than null, false, 0 or nothing.
  bool asks(const std::string& key) const {
    if (!has(key)) return false;
    const Json& value = json_[key];
    return value.is_boolean() || value.is_number() ? value != 0 && value != false : !value.empty();
  }

  // Says that these members have no effect, whatever they are.
  template <class Keys>
  void ignore(const Keys& keys) const {
    for (const auto& key : keys) read_->emplace(prefix_ + std::string(key));
  }

  void ignore_all() const {
    for (const auto& [key, value] : json_.items()) read(key);
  }

  // REQUIRES: has(key).
  HfFields inside(const std::string& key) const {
    TOK_REQUIRE(json_[key].is_object(), "{}: \"{}\": wanted an object", what_, key);
    HfFields fields(json_[key], what_);
    fields.prefix_ = prefix_ + key + ".";
    fields.read_ = read_;
    read_->insert(fields.prefix_);
    return fields;
  }

  // Returns the names of members other than null that nobody asked for, as "rope_scaling.alpha".
  std::vector<std::string> unread() const {
    std::vector<std::string> names;
    for (const auto& [key, value] : json_.items()) {
      const std::string name = prefix_ + key;
      if (!read_->contains(name) && !value.is_null()) names.push_back(name);
      if (!read_->contains(name + ".")) continue;
      for (std::string& inner : inside(key).unread()) names.push_back(std::move(inner));
    }
    return names;
  }

  // REQUIRES: the member exists.
  std::string text_of(const std::string& key) const { return json_[key].dump().substr(0, 60); }

  std::string_view what() const { return what_; }

 private:
  template <class T>
  std::vector<T> list(const std::string& key, std::string_view of) const {
    const auto fits = [](const Json& x) {
      return std::is_same_v<T, double> ? x.is_number() : x.is_string();
    };
    TOK_REQUIRE(has(key) && json_[key].is_array() && std::ranges::all_of(json_[key], fits),
                "{}: \"{}\": wanted a list of {}", what_, key, of);
    return json_[key].get<std::vector<T>>();
  }

  int64_t checked(const std::string& key, int64_t value, int64_t most) const {
    TOK_REQUIRE(value > 0 && value <= most, "{}: \"{}\": wanted a size from 1 to {}, got {}", what_,
                key, most, value);
    return value;
  }

  const std::string& read(const std::string& key) const {
    read_->insert(prefix_ + key);
    return key;
  }

  const Json& json_;
  std::string_view what_;
  std::string prefix_;  ///< of names in read_, in an object inside
  std::shared_ptr<std::set<std::string, std::less<>>> read_ =
      std::make_shared<std::set<std::string, std::less<>>>();
};

}  // namespace tokamak
