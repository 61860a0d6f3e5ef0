// How texts of measured rows become columns of known values: by the rules of
// rows/words.toml, whose head says how they are read.
#pragma once

#include <map>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tokamak {

struct Entry;

/// Trimmed texts of a row by column: texts of its file, then texts that rules fill.
using RowTexts = std::map<std::string, std::string, std::less<>>;

/// Returns the column's text, blank if there is none.
const std::string& text_in(const RowTexts& texts, std::string_view column);

/// Returns `text` as a number, or nothing if it is none or is not finite.
std::optional<double> number_of(std::string_view text);

/// A kind of file whose header has its own spellings of columns.
struct RowShape {
  std::string name;
  std::vector<std::pair<std::string, std::string>> columns;  ///< our name and the file's
  RowTexts texts;  ///< of every row; "{hidden}" in them as in rules
};

class RowRules {
 public:
  /// Throws Error "NAME:LINE: ..." on an unknown column or value and on an invalid regular
  /// expression.
  RowRules(std::string_view toml, const std::string& name);

  /// Returns the rules of rows, with the aliases of machines/devices.
  static const RowRules& built_in();

  /// Fills the columns of a row of this shape that are blank.
  void fill(RowTexts& texts, const RowShape& shape = {}) const;

  /// Returns the values that rules give a column, each once, in their order.
  std::vector<std::string> values_of(std::string_view column) const;

  /// Whether a file may have the column; only rules fill the others.
  static bool is_of_files(std::string_view column);

  const std::vector<RowShape>& shapes() const { return shapes_; }

 private:
  struct Condition {
    std::string column;
    std::regex pattern;
    bool is_found = true;  ///< rather than not found
  };

  struct Rule {
    std::string origin;
    std::string column;
    std::string name;
    std::string value;
    std::vector<Condition> conditions;
  };

  void add(const Entry& entry);
  void add_to_shape(const Entry& entry);
  void add_device_aliases();
  Condition condition(const std::string& origin, std::string_view column,
                      std::string_view text) const;
  std::string with_words(const std::string& origin, std::string text) const;

  RowTexts words_;
  std::vector<Rule> rules_;
  std::vector<RowShape> shapes_;
};

}  // namespace tokamak
