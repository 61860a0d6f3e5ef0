// `tokamak rows FILE.csv`: published measurements beside what their plans would cost.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tokamak/cli/verbs.h"

namespace tokamak::cli {

struct RowsWords {
  std::string file;
  bool json = false;
  std::vector<std::string> sets;  ///< "key=value" of every machine
};

/// Returns nothing if there is no --rows among `args`. Throws Error naming the word.
std::optional<RowsWords> find_rows_words(Args args);

/// Prices the rows and prints the table, or JSON lines.
int print_rows(const RowsWords& words);

}  // namespace tokamak::cli
