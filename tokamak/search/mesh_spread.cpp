#include "tokamak/search/mesh_spread.h"

#include <algorithm>
#include <map>

namespace tokamak {
namespace {

using price::DataSpread;

// Between two stages.
double message_s(const price::StageCosts& costs, const price::GroupLayout& ends,
                 const price::Machine& machine) {
  return price::communication_seconds(
      {.kind = price::Collective::kSendRecv, .bytes = costs.hop_bytes}, ends, machine);
}

// Whether the groups of all stages lie alike: each domain holds whole stages, or stages whole
// domains.
bool is_alike(int ranks_per_stage, const price::Machine& machine) {
  return std::all_of(machine.levels.begin(), machine.levels.end(), [&](const price::Level& level) {
    return level.num_devices == 0 || level.num_devices % ranks_per_stage == 0 ||
           ranks_per_stage % level.num_devices == 0;
  });
}

// Fills `groups` and `groups_of`.
void find_groups(const Degrees& d, const price::StageCosts& costs, const price::Machine& machine,
                 CausalWork work, DataSpread& spread) {
  const auto tp = static_cast<int>(d.tp);
  const int ranks_per_stage = tp * spread.owners * spread.replicas;
  const int place = slowest_place(mesh_of(d), machine, work);
  const int shard = place / (tp * spread.owners) * tp * spread.owners;
  const auto groups_at = [&](int first_rank) {
    return DataSpread::Groups{
        .place = costs.place(first_rank + place),
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

DataSpread spread_without_groups(const Degrees& d, const price::StageCosts& costs,
                                 const price::Machine& machine) {
  const auto tp = static_cast<int>(d.tp);
  const auto owners = static_cast<int>(d.dp_shard * d.cp);
  const auto replicas = static_cast<int>(d.dp_replicate);
  const price::GroupLayout all = price::strided_layout(static_cast<int>(d.world()), 1, machine);
  DataSpread spread{
      .owners = owners,
      .replicas = replicas,
      .norm_s = price::communication_seconds(
          {.kind = price::Collective::kAllReduce, .bytes = sizeof(double)}, all, machine)};
  if (d.pp > 1) {
    const int stride = tp * owners * replicas;
    spread.hop_s = message_s(costs, price::strided_layout(2, stride, machine), machine);
    spread.ends = price::strided_layout(2, static_cast<int>(d.pp - 1) * stride, machine);
  }
  return spread;
}

DataSpread spread_of(const Degrees& d, const price::StageCosts& costs,
                     const price::Machine& machine, CausalWork work) {
  DataSpread spread = spread_without_groups(d, costs, machine);
  find_groups(d, costs, machine, work, spread);
  return spread;
}

price::PipelineRanks pipeline_ranks(const Degrees& d, const price::StageCosts& costs,
                                    const price::Machine& machine, CausalWork work) {
  const auto pp = static_cast<int>(d.pp);
  const auto stride = static_cast<int>(d.world()) / pp;
  const int place = slowest_place(mesh_of(d), machine, work);
  std::map<std::vector<int>, double> by_layout;
  price::PipelineRanks ranks;
  for (int r = 0; r < pp; ++r) {
    ranks.places.push_back(costs.place(r * stride + place));
    for (const int peer : {(r + 1) % pp, (r + pp - 1) % pp}) {
      const int ends[] = {r * stride + place, peer * stride + place};
      const price::GroupLayout layout = price::layout_of(ends, machine);
      const auto [at, is_new] = by_layout.try_emplace(layout.members);
      if (is_new) at->second = message_s(costs, layout, machine);
      ranks.hops_s.push_back(at->second);
    }
  }
  return ranks;
}

}  // namespace tokamak
