// Parses JSON from outside with bounded depth, no duplicate keys and errors that name the file.
// Include it in .cpp files only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace tokamak {

using Json = nlohmann::json;

/// It keeps the order of keys, for files that people read.
using OrderedJson = nlohmann::ordered_json;

struct JsonLimits {
  int max_depth = 64;
  size_t max_members = SIZE_MAX;  ///< of one object
};

/// Parses UTF-8 JSON in time linear in its length; throws Error "WHAT: line L: ..." on bad syntax,
/// a repeated key, or what is beyond a limit.
Json parse_json(std::string_view text, std::string_view what, JsonLimits limits = {});

/// An ordered object is searched from its front, so its members are bounded.
OrderedJson parse_ordered_json(std::string_view text, std::string_view what,
                               JsonLimits limits = {.max_members = 4096});

/// Returns the member `key` as T; throws Error "WHAT: KEY: wanted a ..., got ..." if it is absent
/// or of another type.
template <class T>
T json_member(const Json& object, const std::string& key, std::string_view what);

/// Does the same, but returns `fallback` where the key is absent or null.
template <class T>
T json_member_or(const Json& object, const std::string& key, T fallback, std::string_view what);

}  // namespace tokamak
