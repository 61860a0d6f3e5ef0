// Lines of a CSV file, field by field.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokamak/core/names.h"

namespace tokamak {

using CsvFields = std::vector<std::string>;

/// Follows RFC 4180: fields in quotes may hold commas, line ends and doubled quotes. A quote within
/// a field that begins without one is text. The text must outlive the reader.
class CsvReader {
 public:
  explicit CsvReader(const std::string& text) : text_(text), at_(text.starts_with(kMark) ? 3 : 0) {}

  bool at_end() const { return at_ >= text_.size(); }

  /// Returns the line that next() reads, from 1.
  int line() const { return line_; }

  /// REQUIRES: not at_end().
  CsvFields next() {
    CsvFields fields(1);
    bool quoted = false;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') ++line_;
      if (quoted && c == '"' && at_ + 1 < text_.size() && text_[at_ + 1] == '"') {
        fields.back() += text_[++at_];
      } else if (c == '"' && (quoted || trimmed(fields.back()).empty())) {
        quoted = !quoted;
      } else if (c == ',' && !quoted) {
        fields.emplace_back();
      } else if (c == '\n' && !quoted) {
        ++at_;
        return fields;
      } else if (c != '\r') {
        fields.back() += c;
      }
    }
    is_cut_ = quoted;
    return fields;
  }

  /// Whether the text ended in quotes.
  bool is_cut() const { return is_cut_; }

 private:
  static constexpr std::string_view kMark = "\xEF\xBB\xBF";  // byte order, as spreadsheets write

  const std::string& text_;
  size_t at_;
  int line_ = 1;
  bool is_cut_ = false;
};

}  // namespace tokamak
