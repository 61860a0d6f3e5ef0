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

// Of the ranks of a tensor-parallel group, which begins at `place`, the one whose owners and
// replicas lie worst: the others wait for it.
int slowest_in_group(int place, const Mesh& mesh, const price::Machine& machine) {
  const int tp = mesh.degree(MeshAxis::kTp);
  const int owners = mesh.degree({MeshAxis::kDpShard, MeshAxis::kCp});
  const int replicas = mesh.degree(MeshAxis::kDpReplicate);
  const int block = tp * owners;
  int slowest = place;
  double longest_s = 0.0;
  for (int rank = place; rank < place + tp; ++rank) {
    const price::GroupLayout shard =
        price::strided_layout(owners, tp, machine, rank / block * block + rank % tp);
    const price::GroupLayout replica =
        price::strided_layout(replicas, block, machine, rank % block);
    const double seconds = gather_s(shard, machine) + gather_s(replica, machine);
    if (seconds > longest_s * kMore) {
      longest_s = seconds;
      slowest = rank;
    }
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
  const int tp = mesh.degree(MeshAxis::kTp);
  const int busiest = first_of_busiest(mesh, work);  // nothing else comes near
  const int span = tp * mesh.degree(MeshAxis::kCp);
  const int num_stages = mesh.degree(MeshAxis::kPp);
  const int ranks_per_stage = mesh.size() / num_stages;
  const auto cuts = [&](int devices, int group) {
    return devices > 0 && devices < mesh.size() && devices % group != 0 && group % devices != 0;
  };
  int64_t period = 0;  // after which groups lie as before
  for (const price::Level& level : machine.levels) {
    if (cuts(level.num_devices, tp) || cuts(level.num_devices, span))
      period = std::lcm<int64_t>(period == 0 ? span : period, level.num_devices);
  }
  if (period == 0) return busiest;
  std::vector<double> group_s;  // by rank, in steps of tp
  for (int rank = 0; rank < std::min<int64_t>(period, mesh.size()); rank += tp) {
    const int first = rank / span * span;
    group_s.push_back(gather_s(price::strided_layout(tp, 1, machine, rank), machine) +
                      gather_s(price::strided_layout(span / tp, tp, machine, first), machine));
  }
  int slowest = busiest;
  double longest_s = 0.0;
  for (int place = busiest; place < std::min<int64_t>(period, ranks_per_stage); place += tp) {
    if (busiest > 0 && place % span != busiest) continue;
    double seconds = 0.0;
    for (int stage = 0; stage < num_stages; ++stage) {
      const int64_t rank = static_cast<int64_t>(stage) * ranks_per_stage + place;
      seconds += group_s[static_cast<size_t>(rank % period / tp)];
    }
    if (seconds > longest_s * kMore) {
      longest_s = seconds;
      slowest = place;
    }
  }
  return slowest_in_group(slowest, mesh, machine);
}

int slowest_place(const DistributeOptions& options, const price::Machine& machine) {
  return slowest_place(options.mesh, machine, causal_work(options));
}

}  // namespace tokamak
