#include "tokamak/config/nearest.h"

#include <fmt/format.h>

#include "tokamak/config/accepted.h"
#include "tokamak/config/key_table.h"

namespace tokamak {

std::string unknown_key_hint(std::string_view name) {
  std::string best;
  size_t best_distance = ~size_t{0};
  const auto is_nearer = [&](std::string_view known) {
    const size_t distance = name_distance(name, known);
    if (distance >= best_distance || !is_near(name, known)) return false;
    best_distance = distance;
    return true;
  };
  std::string_view section;
  for (const Key& key : all_keys()) {
    if (is_nearer(key.name)) best = key.name;
    const std::string_view known(key.name);
    const size_t dot = known.rfind('.');
    if (name.substr(0, dot + 1) == known.substr(0, dot + 1)) section = known.substr(0, dot);
  }
  for (const AcceptedName& key : accepted_names()) {
    const bool is_renamed = key.fate == Fate::kRename || key.fate == Fate::kInvert;
    if (is_renamed && is_nearer(key.name)) best = fmt::format("{} (now {})", key.name, key.means);
  }
  if (!best.empty()) return fmt::format("; the nearest is {}", best);
  return fmt::format("; `tokamak help {}` lists the keys", section.empty() ? "all" : section);
}

}  // namespace tokamak
