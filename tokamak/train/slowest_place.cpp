#include "tokamak/train/slowest_place.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "tokamak/price/collective_time.h"

namespace tokamak {
namespace {

constexpr double kMore = 1.0 + 1e-9;

double gather_s(const price::GroupLayout& group, const price::Machine& machine) {
  constexpr double kBytes = 64 << 20;
  return price::collective_seconds(price::Collective::kAllGather, kBytes, group, machine);
}

// How the groups of a mesh lie in the fabric.
struct MeshGroups {
  const Mesh& mesh;
  const price::Machine& machine;
  int tp = mesh.degree(MeshAxis::kTp);
  int span = tp * mesh.degree(MeshAxis::kCp);  // of a tensor- and context-parallel group
  int owners = mesh.degree({MeshAxis::kDpShard, MeshAxis::kCp});
  int replicas = mesh.degree(MeshAxis::kDpReplicate);
  int block = tp * owners;
  int num_stages = mesh.degree(MeshAxis::kPp);

  // Whether blocks of so many ranks lie unevenly in the domains of a level.
  bool cuts(const price::Level& level, int ranks) const {
    const int devices = level.num_devices;
    return devices > 0 && devices < mesh.size() && devices % ranks != 0 && ranks % devices != 0;
  }

  // The number of ranks after which blocks of so many, and what is cut of `inner`, lie as before.
  int period(int ranks, int inner) const {
    int64_t ranks_in_period = ranks;
    for (const price::Level& level : machine.levels) {
      if (cuts(level, tp) || cuts(level, inner) || cuts(level, ranks))
        ranks_in_period = std::lcm<int64_t>(ranks_in_period, level.num_devices);
    }
    return static_cast<int>(std::min<int64_t>(ranks_in_period, mesh.size()));
  }

  // Of the tensor- and the context-parallel group of a rank that begins the former.
  double model_s(int rank) const {
    return gather_s(price::strided_layout(tp, 1, machine, rank), machine) +
           gather_s(price::strided_layout(span / tp, tp, machine, rank / span * span), machine);
  }

  // Of its owners and replicas, among which a replica's share is one owner's.
  double data_s(int rank) const {
    const int first = rank / block * block;
    const price::GroupLayout shard = price::strided_layout(owners, tp, machine, first + rank % tp);
    const price::GroupLayout replica =
        price::strided_layout(replicas, block, machine, rank - first);
    return gather_s(shard, machine) + gather_s(replica, machine) / owners;
  }
};

// Those of the first `period` ranks of a stage, as far as it goes, whose tensor- and
// context-parallel groups take longest in all stages; of each tensor-parallel group the first.
std::vector<int> slowest_models(const MeshGroups& p, int busiest, int period) {
  const int ranks_per_stage = p.mesh.size() / p.num_stages;
  std::vector<double> model_s;  // by rank, in steps of tp
  for (int rank = 0; rank < period; rank += p.tp) model_s.push_back(p.model_s(rank));
  std::vector<int> slowest;
  double longest_s = 0.0;
  for (int place = busiest; place < std::min(period, ranks_per_stage); place += p.tp) {
    if (busiest > 0 && place % p.span != busiest) continue;
    double seconds = 0.0;
    for (int stage = 0; stage < p.num_stages; ++stage) {
      const int64_t rank = static_cast<int64_t>(stage) * ranks_per_stage + place;
      seconds += model_s[static_cast<size_t>(rank % period / p.tp)];
    }
    if (seconds > longest_s * kMore) slowest.clear();
    if (slowest.empty() || seconds * kMore >= longest_s) slowest.push_back(place);
    longest_s = std::max(longest_s, seconds);
  }
  return slowest;
}

}  // namespace

CausalWork causal_work(const DistributeOptions& options) {
  return options.head_and_tail ? CausalWork::kEven : CausalWork::kOfLastMost;
}

int first_of_busiest(const Mesh& mesh, CausalWork work) {
  const int last = mesh.degree(MeshAxis::kCp) - 1;
  return work == CausalWork::kOfLastMost ? last * mesh.degree(MeshAxis::kTp) : 0;
}

int slowest_place(const Mesh& mesh, const price::Machine& machine, CausalWork work) {
  const MeshGroups p{.mesh = mesh, .machine = machine};
  const int busiest = first_of_busiest(mesh, work);  // nothing else comes near
  const int period = p.period(p.span, p.span);
  const int blocks = p.period(p.block, p.span) / p.block;
  if (period == p.span && blocks == 1) return busiest;
  const bool cuts_tp = std::any_of(machine.levels.begin(), machine.levels.end(),
                                   [&](const price::Level& level) { return p.cuts(level, p.tp); });
  const std::vector<int> models = slowest_models(p, busiest, period);
  int slowest = models.front();
  double longest_s = 0.0;
  for (int block = 0; block < std::min(blocks, p.replicas); ++block) {
    const int first = block * p.block;
    for (const int model : models) {
      // The first that lies like it in this block.
      const int from = std::max(0, first - model);
      const int place = model + (from + period - 1) / period * period;
      if (place >= first + p.block) continue;
      for (int rank = place; rank < place + (cuts_tp ? p.tp : 1); ++rank) {
        const double seconds = p.data_s(rank);
        if (seconds <= longest_s * kMore) continue;
        longest_s = seconds;
        slowest = rank;
      }
    }
  }
  return slowest;
}

int slowest_place(const DistributeOptions& options, const price::Machine& machine) {
  return slowest_place(options.mesh, machine, causal_work(options));
}

}  // namespace tokamak
