// Names that Config has no key for: torchtitan's retired names with what they become today, names
// that ask for nothing in this program, and keys that it had and refuses.
#pragma once

#include <span>
#include <string_view>

namespace tokamak {

enum class Fate {
  kRename,     ///< The successor takes the value as it is.
  kInvert,     ///< The successor takes the opposite boolean.
  kDrop,       ///< The name is accepted without effect; `note` says why.
  kTranslate,  ///< translate.cpp turns the value into one or more live keys.
  kRefuse,     ///< The name is an error; `note` says what to do instead.
};

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): in the order its table is written
struct RetiredKey {
  std::string_view name;
  Fate fate;
  /// The live key, "" for dropped names; for kTranslate, the key to recommend.
  std::string_view successor;
  std::string_view note;
  /// Whether `--section.name` alone means true.
  bool is_flag = false;
};

/// Returns all retired keys, sorted by name.
std::span<const RetiredKey> all_retired_keys();

/// Returns the retired key with this full name, or null.
const RetiredKey* find_retired_key(std::string_view name);

}  // namespace tokamak
