// A simdjson element that knows where it is, for errors that name the place. Include this header in
// .cpp files only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <simdjson.h>

#include "tokamak/core/error.h"
#include "tokamak/core/json.h"

namespace tokamak {

inline constexpr size_t kMaxJsonDepth = 64;

/// Parses a document; `text` and `parser` must outlive the element. Throws Error that begins with
/// `name`.
inline simdjson::dom::element parse_dom(simdjson::dom::parser& parser, std::string_view text,
                                        std::string_view name) {
  simdjson::dom::element root;
  simdjson::error_code error = parser.allocate(text.size(), kMaxJsonDepth);
  if (error == simdjson::SUCCESS) error = parser.parse(text.data(), text.size()).get(root);
  if (error == simdjson::SUCCESS) return root;
  // simdjson does not report the position of an error; the slow parser does.
  parse_json(text, name, {.max_depth = kMaxJsonDepth});
  fail("{}: {}", name, simdjson::error_message(error));
}

/// A value and its path, as in "tokenizer.json: model.merges[12]".
class JsonNode {
 public:
  /// `separator` stands between `where` and the names of members.
  JsonNode(simdjson::dom::element element, std::string where, std::string_view separator = ".")
      : element_(element), where_(std::move(where)), separator_(separator) {}

  const std::string& where() const { return where_; }

  bool is_string() const { return element_.is_string(); }

  bool is_array() const { return element_.is_array(); }

  std::string_view text() const { return get<std::string_view>("a string"); }

  bool boolean() const { return get<bool>("true or false"); }

  int64_t integer() const { return get<int64_t>("an integer"); }

  double number() const { return get<double>("a number"); }

  simdjson::dom::array array() const { return get<simdjson::dom::array>("an array"); }

  simdjson::dom::object object() const { return get<simdjson::dom::object>("an object"); }

  /// Returns the member, or nothing where it is absent or null; throws Error on a repeated key.
  std::optional<JsonNode> find(std::string_view key) const {
    std::optional<JsonNode> found;
    bool seen = false;
    for (const auto& [name, value] : object()) {
      if (name != key) continue;
      TOK_REQUIRE(!seen, "{}: the key {} is repeated", where_, key);
      seen = true;
      if (!value.is_null()) found = JsonNode(value, child(key));
    }
    return found;
  }

  /// Returns the member; throws Error where it is absent or null.
  JsonNode at(std::string_view key) const {
    std::optional<JsonNode> found = find(key);
    TOK_REQUIRE(found, "{}: wanted a key {}, found none", where_, key);
    return *found;
  }

  JsonNode element(simdjson::dom::element value, size_t index) const {
    return {value, fmt::format("{}[{}]", where_, index)};
  }

  std::string_view text_or(std::string_view key, std::string_view fallback) const {
    const auto node = find(key);
    return node ? node->text() : fallback;
  }

  bool boolean_or(std::string_view key, bool fallback) const {
    const auto node = find(key);
    return node ? node->boolean() : fallback;
  }

 private:
  template <class T>
  T get(std::string_view wanted) const {
    T value;
    TOK_REQUIRE(element_.get(value) == simdjson::SUCCESS, "{}: wanted {}", where_, wanted);
    return value;
  }

  std::string child(std::string_view key) const {
    return fmt::format("{}{}{}", where_, separator_, key);
  }

  simdjson::dom::element element_;
  std::string where_;
  std::string_view separator_;
};

}  // namespace tokamak
