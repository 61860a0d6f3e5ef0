// Names of torchtitan's, of today and of older versions, that are accepted though Config has no
// such key.
#pragma once

#include <span>
#include <string_view>

namespace tokamak {

enum class Fate {
  kRename,   ///< The key `means` takes the value as it is.
  kInvert,   ///< The key `means` takes the opposite boolean.
  kConvert,  ///< true, or the text "dynamic", adds the converter `means`.
  kOnly,     ///< Any value but `means`, as value_text() writes it, is a need; `note` is its reason.
  kRefuse,   ///< It is an error; `note` says what to do instead.
  kDrop,     ///< It has no effect; `note` says why.
};

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): in the order its table is written
struct AcceptedName {
  std::string_view name;
  Fate fate;
  std::string_view means;
  std::string_view note;
  /// Whether `--section.name` alone means true.
  bool is_flag = false;
};

/// Returns all such names, sorted.
std::span<const AcceptedName> accepted_names();

/// Returns the row of this full name, or null.
const AcceptedName* find_accepted(std::string_view name);

}  // namespace tokamak
