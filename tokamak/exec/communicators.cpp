#include "tokamak/exec/communicators.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace tokamak {

Communicators::Communicators(World& world, const GroupTable& groups,
                             std::span<const GatheredMemory> gathered)
    : groups_(groups.entries.size()) {
  std::vector<size_t> order(groups.entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) {
    const GroupTable::Entry& x = groups.entries[a];
    const GroupTable::Entry& y = groups.entries[b];
    return std::tie(x.ranks, x.name) < std::tie(y.ranks, y.name);
  });
  for (const size_t id : order) {
    const GroupTable::Entry& group = groups.entries[id];
    const bool gathers = !gathered.empty() && !gathered[id].arenas.empty();
    if (gathers) {
      owned_.push_back(world.make_gather_group(group.name, group.ranks, gathered[id]));
    } else if (group.purpose == GroupPurpose::kMessage) {
      owned_.push_back(world.make_message_group(group.name, group.ranks));
    } else {
      owned_.push_back(world.make_group(group.name, group.ranks));
    }
    groups_[id] = owned_.back().get();
  }
}

}  // namespace tokamak
