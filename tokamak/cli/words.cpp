#include "tokamak/cli/words.h"

#include <algorithm>

#include <fmt/format.h>

#include "tokamak/core/error.h"

namespace tokamak::cli {

bool parse(CLI::App& app, Args args) {
  std::vector<std::string> words(args.begin(), args.end());
  std::reverse(words.begin(), words.end());
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return false;
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    fail("{}: {}", app.get_name().substr(std::string("tokamak ").size()), text);
  }
  return true;
}

void check_budget(double seconds) {
  constexpr double kMost = 3600.0;
  TOK_REQUIRE(seconds >= 0.0 && seconds <= kMost, "--seconds {}: wanted 0 to {}", seconds, kMost);
}

}  // namespace tokamak::cli
