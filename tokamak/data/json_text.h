// Reads the `text` field of one JSON line.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tokamak {

class JsonTextParser {
 public:
  /// Bytes that must be readable after a line.
  static const size_t kPadding;

  JsonTextParser();
  ~JsonTextParser();

  /// Returns the field `text` of the object `line`, valid until the next call. A byte order mark
  /// before it is skipped, and an escaped surrogate that is not one of a pair becomes U+FFFD.
  /// Throws Error "WHERE: ...". REQUIRES: kPadding readable bytes after `line`.
  std::string_view text_of(std::string_view line, const std::string& where);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tokamak
