// Finds JSON values in a text and reads the field of them that holds a document.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tokamak {

inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// Finds the end of a JSON value whose text comes in parts. It checks no grammar, but ends at a
/// line end within a string, which no value has.
class JsonEnd {
 public:
  /// Returns how many bytes of `part` belong to the value; fewer than all if it ends before.
  size_t add(std::string_view part);

  bool found() const { return found_; }

 private:
  int64_t depth_ = 0;
  bool in_string_ = false;
  bool is_escaped_ = false;
  bool found_ = false;
};

class JsonTextParser {
 public:
  /// Bytes that must be readable after a value.
  static const size_t kPadding;

  /// `column` names the field that is read, or a member "a.b" of one.
  explicit JsonTextParser(std::string column);
  ~JsonTextParser();

  /// Returns whether `value` is one JSON value, as Python's json module reads it: NaN, Infinity and
  /// integers of any size are numbers, and an escaped surrogate that is not one of a pair becomes
  /// U+FFFD. REQUIRES: kPadding readable bytes after `value`.
  bool parse(std::string_view value);

  /// Returns the column of the object that was parsed, or the string itself if that is allowed,
  /// valid until the next call. Strings of arrays on the way to it are joined by line ends, without
  /// nulls and items that lack it. Throws Error "WHERE: ...", also if parsing failed.
  std::string_view text(const std::string& where, bool allow_string = false);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tokamak
