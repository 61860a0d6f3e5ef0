#include "tokamak/config/nearest.h"

#include <fmt/format.h>

#include "tokamak/config/key_table.h"
#include "tokamak/config/retired.h"

namespace tokamak {

std::string nearest_key(std::string_view name) {
  std::string best;
  size_t best_distance = ~size_t{0};
  for (const Key& key : all_keys()) {
    const size_t d = name_distance(name, key.name);
    if (d < best_distance) {
      best_distance = d;
      best = key.name;
    }
  }
  for (const RetiredKey& key : all_retired_keys()) {
    const size_t d = name_distance(name, key.name);
    if (d < best_distance && !key.successor.empty()) {
      best_distance = d;
      best = fmt::format("{} (now {})", key.name, key.successor);
    }
  }
  return best;
}

}  // namespace tokamak
