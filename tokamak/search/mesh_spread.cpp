#include "tokamak/search/mesh_spread.h"

#include <algorithm>

namespace tokamak {
namespace {

using price::DataSpread;

// Whether the groups of all stages lie alike: each domain holds whole stages, or each stage holds
// whole domains.
bool is_alike(int ranks_per_stage, const price::Machine& machine) {
  return std::all_of(machine.levels.begin(), machine.levels.end(), [&](const price::Level& level) {
    return level.num_devices == 0 || level.num_devices % ranks_per_stage == 0 ||
           ranks_per_stage % level.num_devices == 0;
  });
}

// Fills `groups` and `groups_of`. `place` is the rank's place among those of its stage.
void find_groups(const Degrees& d, const price::Machine& machine, int place, DataSpread& spread) {
  const auto tp = static_cast<int>(d.tp);
  const int ranks_per_stage = tp * spread.owners * spread.replicas;
  const int shard = place / (tp * spread.owners) * tp * spread.owners;
  const auto groups_at = [&](int first_rank) {
    return DataSpread::Groups{
        .shard = price::strided_layout(spread.owners, tp, machine, first_rank + shard + place % tp),
        .replica = price::strided_layout(spread.replicas, tp * spread.owners, machine,
                                         first_rank + place - shard)};
  };
  spread.groups = {groups_at(0)};
  if (d.pp == 1 || is_alike(ranks_per_stage, machine)) return;
  spread.groups_of = {0};
  for (int rank = 1; rank < d.pp; ++rank) {
    DataSpread::Groups groups = groups_at(rank * ranks_per_stage);
    const auto at = std::find(spread.groups.begin(), spread.groups.end(), groups);
    spread.groups_of.push_back(static_cast<int>(at - spread.groups.begin()));
    if (at == spread.groups.end()) spread.groups.push_back(std::move(groups));
  }
}

}  // namespace

DataSpread spread_of(const Degrees& d, const price::StageCosts& costs,
                     const price::Machine& machine, CausalWork work) {
  const price::GroupLayout all = price::strided_layout(static_cast<int>(d.world()), 1, machine);
  DataSpread spread{
      .owners = static_cast<int>(d.dp_shard * d.cp),
      .replicas = static_cast<int>(d.dp_replicate),
      .norm_s = price::communication_seconds(
          {.kind = price::Collective::kAllReduce, .bytes = sizeof(double)}, all, machine)};
  const int place = slowest_place(mesh_of(d), machine, work);
  find_groups(d, machine, place, spread);
  const auto pp = static_cast<int>(d.pp);
  if (pp == 1) return spread;
  const auto stride = static_cast<int>(d.world()) / pp;
  const auto between = [&](int rank, int other, price::Collective kind, double bytes) {
    const int ends[] = {rank * stride + place, other * stride + place};
    return price::communication_seconds({.kind = kind, .bytes = bytes},
                                        price::layout_of(ends, machine), machine);
  };
  for (int rank = 0; rank < pp; ++rank) {
    spread.places.push_back(costs.place(rank * stride + place));
    spread.hops_s.push_back(
        between(rank, (rank + 1) % pp, price::Collective::kSendRecv, costs.hop_bytes));
  }
  if (costs.tied_elements > 0.0)
    spread.tie_s = between(0, pp - 1, price::Collective::kAllReduce,
                           costs.tied_elements / spread.owners * costs.bytes.gradient);
  return spread;
}

}  // namespace tokamak
