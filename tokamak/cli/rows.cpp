#include "tokamak/cli/rows.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "tokamak/cli/console.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/evidence/row_price.h"

namespace tokamak::cli {

std::optional<RowsWords> find_rows_words(Args args) {
  const auto is_rows = [](const std::string& word) {
    return word == "--rows" || word.starts_with("--rows=");
  };
  if (std::none_of(args.begin(), args.end(), is_rows)) return std::nullopt;
  RowsWords words;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& word = args[i];
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (word == "--json") {
      words.json = true;
      continue;
    }
    TOK_REQUIRE(name == "--rows" || name == "--set",
                "rows: unknown word {}: wanted a FILE.csv, --json, --set KEY=NUMBER", word);
    const bool has_value = equals != std::string::npos;
    TOK_REQUIRE(has_value || i + 1 < args.size(), "{}: wanted a value", word);
    const std::string value = has_value ? word.substr(equals + 1) : args[++i];
    TOK_REQUIRE(has_value || !value.starts_with("--"), "{}: wanted a value, got {}", word, value);
    if (name == "--rows") {
      TOK_REQUIRE(words.file.empty(), "--rows {}: given twice", value);
      words.file = value;
    } else {
      words.sets.push_back(value);
    }
  }
  return words;
}

int print_rows(const RowsWords& words) {
  const std::vector<MeasuredRun> rows = read_measured_rows(words.file);
  const std::vector<PricedRow> priced = [&] {
    const Waiting waiting("pricing");
    return price_rows(rows, {.assignments = words.sets});
  }();
  if (!words.json) {
    fmt::print("{}", to_table(priced));
    return 0;
  }
  for (const PricedRow& row : priced) fmt::print("{}\n", to_json(row));
  return 0;
}

}  // namespace tokamak::cli
