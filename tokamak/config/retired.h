// Names that are accepted though no key of Config has them: torchtitan's retired names and what
// they become today, and names that ask for nothing in this program.
#pragma once

#include <span>
#include <string_view>

namespace tokamak {

enum class Fate {
  kRename,     ///< The successor takes the value as it is.
  kInvert,     ///< The successor takes the opposite boolean.
  kDrop,       ///< Accepted without effect; `note` says why.
  kTranslate,  ///< translate.cpp turns the value into one or more live keys.
};

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): in the order its table is written
struct RetiredKey {
  std::string_view name;
  Fate fate;
  /// The live key, "" for dropped ones; of kTranslate the one to recommend.
  std::string_view successor;
  std::string_view note;
  /// True where `--section.name` alone means true.
  bool is_flag = false;
};

/// All such names, sorted.
std::span<const RetiredKey> all_retired_keys();

/// The one of that full name, or null.
const RetiredKey* find_retired_key(std::string_view name);

}  // namespace tokamak
