#include "tokamak/cli/words.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/names.h"

namespace tokamak::cli {

namespace {

// Returns "; the nearest is --OPTION" for the first word that is no option but near one.
std::string hint_of(const CLI::App& app, Args args) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (const std::string& word : args) {
    const std::string name = word.substr(0, word.find('='));
    if (name == "--") return "";
    const bool is_known = std::ranges::find(known, name) != known.end();
    if (!is_known && name.starts_with("--")) return nearest_hint(name, known);
  }
  return "";
}

// Says what CLI11 means.
std::string in_plain_words(const CLI::App& app, std::string text) {
  std::ranges::replace(text, '\n', ' ');
  constexpr std::string_view kTwice = ": At Most 1 required but received ";
  constexpr std::string_view kOther = "Could not convert: ";
  if (const size_t at = text.find(kTwice); at != std::string::npos)
    return fmt::format("{}: wanted once, got {} times", text.substr(0, at),
                       text.substr(at + kTwice.size()));
  if (!text.starts_with(kOther)) return text;
  text.erase(0, kOther.size());
  const CLI::Option* option = app.get_option_no_throw(text.substr(0, text.find(' ')));
  const bool is_whole = option != nullptr && option->get_type_name() != "FLOAT";
  return fmt::format("{}: wanted {}", text, is_whole ? "an integer" : "a number");
}

// Texts and addresses may well begin with a scheme; all other words that do are paths.
void refuse_schemes(const CLI::App& app) {
  constexpr std::string_view kNoPaths[] = {"--endpoint", "--prompt", "--stop", "--title",
                                           "repository"};
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (std::ranges::find(kNoPaths, name) != std::end(kNoPaths)) continue;
    for (const std::string& word : option->results()) {
      const std::string why = why_not_local(word);
      TOK_REQUIRE(why.empty(), "{}: {}: {}", app.get_name().substr(std::string("tokamak ").size()),
                  name, why);
    }
  }
}

}  // namespace

bool parse(CLI::App& app, Args args) {
  std::vector<std::string> words(args.begin(), args.end());
  std::ranges::reverse(words);
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return false;
  } catch (const CLI::ExtrasError&) {
    fail("{}: no such argument: {}{}", app.get_name().substr(std::string("tokamak ").size()),
         fmt::join(app.remaining(), " "), hint_of(app, args));
  } catch (const CLI::ParseError& error) {
    fail("{}: {}{}", app.get_name().substr(std::string("tokamak ").size()),
         in_plain_words(app, error.what()), hint_of(app, args));
  }
  refuse_schemes(app);
  return true;
}

void require_dashes(Args args) {
  for (size_t i = 0; i < args.size(); ++i) {
    const bool may_be_value = i > 0 && args[i - 1].starts_with("-");
    TOK_REQUIRE(may_be_value || !is_verb(args[i]),
                "tokamak launch: wanted -- before the command: tokamak launch {}{}-- {}",
                fmt::join(args.first(i), " "), i > 0 ? " " : "", fmt::join(args.subspan(i), " "));
  }
}

std::string wrapped(std::string text, size_t indent) {
  constexpr size_t kColumns = 100;
  std::string lines;
  while (text.size() > kColumns) {
    const size_t comma = text.rfind(", ", kColumns - 2);
    if (comma == std::string::npos || comma < indent) break;
    lines += text.substr(0, comma + 1) + "\n";
    text = std::string(indent, ' ') + text.substr(comma + 2);
  }
  return lines + text + "\n";
}

void check_budget(double seconds) {
  constexpr double kMost = 3600.0;
  TOK_REQUIRE(seconds >= 0.0 && seconds <= kMost, "--seconds {}: wanted 0 to {}", seconds, kMost);
}

}  // namespace tokamak::cli
