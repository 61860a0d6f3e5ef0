// tokamak_rows FILE.csv [--json] [--set KEY=VALUE]: published measurements beside the prices of
// their plans (docs/rows.md).
#include <exception>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tokamak/core/error.h"

#include "rows/row_price.h"

namespace tokamak {
namespace {

int run(const std::vector<std::string>& args) {
  std::string file;
  bool wants_json = false;
  RowPriceOptions options;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--json") {
      wants_json = true;
    } else if (args[i] == "--set" && i + 1 < args.size()) {
      options.assignments.push_back(args[++i]);
    } else {
      TOK_REQUIRE(file.empty() && !args[i].starts_with("-"),
                  "{}: wanted tokamak_rows FILE.csv [--json] [--set KEY=VALUE]", args[i]);
      file = args[i];
    }
  }
  TOK_REQUIRE(!file.empty(), "wanted tokamak_rows FILE.csv [--json] [--set KEY=VALUE]");
  const std::vector<PricedRow> priced = price_rows(read_measured_rows(file), options);
  if (!wants_json) fmt::print("{}", to_table(priced));
  if (wants_json) {
    for (const PricedRow& row : priced) fmt::print("{}\n", to_json(row));
  }
  return 0;
}

}  // namespace
}  // namespace tokamak

int main(int argc, char** argv) {
  try {
    return tokamak::run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const tokamak::Error& error) {
    fmt::print(stderr, "tokamak_rows: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "tokamak_rows: {}\n", error.what());
    return 1;
  }
}
